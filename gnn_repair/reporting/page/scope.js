// What a number is about, in words: which case, which split or mean over splits, which nodes.

function errorsOf(n) {
  return `${count(n)} error${n === 1 ? "" : "s"}`;
}
function caseName({ dataset, backbone }) {
  return [dataset, backbone].filter(Boolean).join(" × ") || "this page's model";
}

// The run's case and split, where it has them, ending in a dot.
function caseScope(run) {
  const parts = [];
  if (run.dataset && run.backbone) parts.push(caseName(run));
  if (known(run.split)) parts.push(`split ${run.split}`);
  return parts.length ? `${parts.join(" · ")} · ` : "";
}
function runScope(run) {
  return `${caseScope(run)}${count(run.count)} ${selected(run)}`;
}

function splitWords(splits) {
  if (splits.some((split) => !known(split))) return "one run";
  if (splits.length === 1) return `split ${splits[0]}`;
  const whole = splits.every((split, j) => split === splits[0] + j);
  const last = splits[splits.length - 1];
  return whole && splits.length > 2
    ? `mean over splits ${splits[0]} to ${last}`
    : `mean over splits ${joined(splits.map(String))}`;
}
function methodScope(entry) {
  const named = entry.dataset || entry.backbone ? `${caseName(entry)} · ` : "";
  return `${named}${splitWords(entry.methods[0].splits)} · ${entry.on}`;
}
function studyScope(cases) {
  return `all ${count(cases.length)} cases · each the mean over its splits · ${cases[0].on}`;
}

// Where the run stands among a case's splits; −1 where the case is not its own.
function ownSplit(run, entry) {
  if (!run || run.dataset !== entry.dataset || run.backbone !== entry.backbone) return -1;
  return entry.methods[0].splits.indexOf(run.split);
}

// The share of the run's nodes that a method gets right, in percent; null where it is not here.
function ownAccuracy(run, key) {
  let right = 0;
  const repair = run.repairs.find((entry) => entry.key === key);
  if (!repair && key !== "frozen") return null;
  for (let i = 0; i < run.count; i++)
    right += repair ? repair.predictions[i] === run.labels[run.nodes[i]] : isRight(run, i);
  return (100 * right) / run.count;
}
