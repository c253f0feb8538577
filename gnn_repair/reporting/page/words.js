// What things are called, what numbers are about, and the hover card that explains words.

// What things are called: names that can be told apart, and one or many of them in words.

// Marks that turn the reading direction: a name must not turn the words around it.
const TURNING = /[\u200e\u200f\u061c\u202a-\u202e\u2066-\u2069]/g;
const LEFTWARD = /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc\u{10800}-\u{10fff}\u{1e800}-\u{1efff}]/u;

// A name on one line; one that is read from right to left stays within itself.
function tidyName(name) {
  const bare = name.replace(TURNING, "").replace(/\s+/g, " ").trim();
  return LEFTWARD.test(bare) ? `\u2068${bare}\u2069` : bare;
}
function withoutMarks(text) {
  return text.replace(/[\u2068\u2069]/g, "");
}

// Names of classes: a blank one is called by its number, equal ones have theirs behind them.
function distinctNames(names) {
  const shown = names.map((name, c) => tidyName(name) || `class ${c}`),
    times = new Map();
  for (const name of shown) times.set(name, (times.get(name) || 0) + 1);
  return shown.map((name, c) => (times.get(name) > 1 ? `${name} (${c})` : name));
}

function className(run, index) {
  return index < 0 ? "unlabelled" : run.classes[index];
}
// After the word "class": "class 7" is "7" there, other names are as they are.
function bareClass(run, index) {
  return index < 0 ? "unknown" : run.shortClasses[index];
}
function nodeName(run, node) {
  if (run.graph_starts) return pooledName(run, node);
  return (run.names && tidyName(run.names[node])) || String(node);
}
// A sender that is no recipient's like: it has a name, and neither class nor prediction.
function isForeign(run, source) {
  return run.labels[source] < 0 && run.predictions[source] < 0;
}
// What sends a message: of a classified graph one of its nodes, else one of the recipients' kind.
function senderNoun(run) {
  return run.graph_starts ? "node" : run.noun;
}
function senderWords(node, source) {
  if (source === node.id) return "itself";
  const name = nodeName(node.run, source);
  return node.run.names && isForeign(node.run, source) ? name : `${senderNoun(node.run)} ${name}`;
}
// A sender where others stand beside it: with its kind where they are of several.
function sourceName(run, source) {
  const mixed = !run.graph_starts && run.labels.length > run.recipients;
  const name = nodeName(run, source);
  return mixed && !isForeign(run, source) ? `${run.noun} ${name}` : name;
}

function capital(text) {
  return text.slice(0, 1).toUpperCase() + text.slice(1);
}
function titled(run, node) {
  return `${capital(run.noun)} ${nodeName(run, node)}`;
}
// "1 node", "1,041 nodes".
function counted(run, n) {
  return `${count(n)} ${n === 1 ? run.noun : run.nouns}`;
}
// What the page calls its nodes, "test nodes", of n of them.
function selected(run, n = run.count) {
  const { selection, noun, nouns } = run;
  if (n !== 1 || !selection.endsWith(nouns)) return selection;
  return selection.slice(0, selection.length - nouns.length) + noun;
}

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

// What this page is about, said once: case, split, nodes, what is reweighted and what is not.
function scopeWords(run) {
  const only = run.scope ? ` · ${run.scope}` : "",
    groups = run.groups.length > 4 ? `${count(run.groups.length)} groups` : joined(run.groups),
    held = run.held ? ` · not reweighted: ${run.held.replaceAll("`", "")}` : "";
  return `${runScope(run)} · reweighted: the messages of ${groups}${only}${held}`;
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

// The hover card: by mouse, by touch and by focus; and the glossary behind the page's own words.

const GLOSSARY = new Map([
  ["γ", "gamma: the largest lead over the worst rival that some reweighting gives a class"],
  ["α", "alpha: the weight that the frozen model gives a message"],
  ["λ", "lambda: another weight for the same message; a group's λ add up to what its α do"],
  ["β", "beta: the part of the logits that no message brings, and no reweighting changes"],
  ["term", "one message of the last aggregation: who sent it, its weight, what it adds to logits"],
  ["group", "terms that share one mass, such as a convolution's or one attention head's"],
  ["witness", "the mixture that proves that a class can win: a few terms with their λ"],
  ["reach", "a class is within reach when some reweighting of the frozen messages makes it win"],
]);
const GLOSSED = /γ|α|λ|β|\b[Tt]erms?\b|\b[Gg]roups?\b|\b[Ww]itness(?:es)?\b|\b[Rr]each(?:able)?\b/g;

function glossKey(word) {
  const plain = word.toLowerCase();
  if (GLOSSARY.has(plain)) return plain;
  return [...GLOSSARY.keys()].find((key) => key.length > 1 && plain.startsWith(key));
}

// Text as nodes in which the first of each word of the glossary explains itself.
function glossed(text) {
  const parts = [],
    seen = new Set();
  let from = 0;
  for (const match of text.matchAll(GLOSSED)) {
    const key = glossKey(match[0]);
    if (seen.has(key)) continue;
    seen.add(key);
    const made = element("span", { class: "gloss", tip: [match[0], GLOSSARY.get(key)] });
    made.textContent = match[0];
    parts.push(text.slice(from, match.index), made);
    from = match.index + match[0].length;
  }
  return [...parts, text.slice(from)];
}

// The element whose card is shown: the nearest with lines of its own, or one whose text is cut.
function tipOwner(target) {
  for (let over = target; over && over !== document.body; over = over.parentElement) {
    if (over.tip) return over;
    if (over.scrollWidth > over.clientWidth + 1 && getComputedStyle(over).textOverflow !== "clip")
      return over;
  }
  return null;
}

function tipLines(owner) {
  if (!owner.tip) return [owner.textContent];
  return typeof owner.tip === "function" ? owner.tip() : owner.tip;
}

function startTips() {
  const card = byId("tip");
  let described = null,
    touched = false;

  function hide() {
    card.hidden = true;
    touched = false;
    if (described) described.removeAttribute("aria-describedby");
    described = null;
  }

  function place(owner, x, y) {
    card.replaceChildren(
      ...tipLines(owner).map((line) => {
        const made = element("div");
        made.textContent = line;
        return made;
      }),
    );
    card.hidden = false;
    const box = card.getBoundingClientRect();
    const left = Math.min(x + 14, window.innerWidth - box.width - 8);
    const above = y + 16 + box.height > window.innerHeight;
    card.style.left = `${Math.max(8, left)}px`;
    card.style.top = `${Math.max(4, above ? y - box.height - 10 : y + 16)}px`;
  }

  function follow(event) {
    const owner = tipOwner(event.target);
    if (owner) place(owner, event.clientX, event.clientY);
    else hide();
  }

  document.addEventListener("pointermove", (event) => {
    if (event.pointerType !== "touch") follow(event);
  });
  // A finger does not hover: touching shows the card, touching elsewhere takes it away.
  // Lifting it is a pointer that leaves, and a focus that moves: the card stays.
  document.addEventListener("pointerdown", (event) => {
    if (event.pointerType !== "touch") return;
    follow(event);
    touched = !card.hidden;
  });
  document.addEventListener("pointerleave", (event) => {
    if (event.pointerType !== "touch") hide();
  });
  document.addEventListener("focusin", (event) => {
    const owner = tipOwner(event.target);
    if (!owner || !event.target.matches(":focus-visible")) {
      if (!touched) hide();
      return;
    }
    const box = event.target.getBoundingClientRect();
    place(owner, box.left, box.bottom - 8);
    described = event.target;
    described.setAttribute("aria-describedby", "tip");
  });
  document.addEventListener("focusout", () => {
    if (!touched) hide();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") hide();
  });
  window.addEventListener("scroll", () => described || hide(), { passive: true });
}

// One sentence for people who do not see the page change; a moment later, so that a walk through
// the list is not read out node by node.
let announcing = 0;
function announce(sentence) {
  clearTimeout(announcing);
  announcing = setTimeout(() => {
    byId("announce").textContent = sentence;
  }, 250);
}
