// The overview: what the run as a whole looks like, and the cases of the study around it.

function drawOverview(run, study) {
  const { cases } = study;
  const chosen = byId("case");
  byId("case-choice").hidden = cases.length < 2;
  fill(chosen, cases.map((entry, j) => [j, `${entry.dataset} × ${entry.backbone}`]), Math.max(0, study.shown));
  chosen.addEventListener("change", () => layOut(run, cases, Number(chosen.value)));
  layOut(run, cases, Math.max(0, study.shown));
}

function layOut(run, cases, index) {
  byId("charts").replaceChildren();
  const shown = cases[index];
  if (run) drawFigures(run, shown);
  else drawStudyFigures(cases, shown);
  accuracyCard(shown);
  if (cases.length > 1) gainCard(cases);
  if (run) movesCard(run);
  reachCard(run, cases, index);
  if (run) {
    marginCard(run);
    degreeCard(run);
    homophilyCard(run);
    supportCard(run);
  }
  if (Object.keys(shown.paper).length) paperCard(shown);
}

function tally(run) {
  const sums = { right: 0, reachable: 0, unreachable: 0, undecided: 0, unknown: 0, reach: 0, support: 0, solved: 0, open: 0 };
  for (let i = 0; i < run.count; i++) {
    sums[statusOf(run, i)]++;
    if (tailVerdict(run, i) === "undecided") sums.open++;
    if (!Number.isNaN(run.margins[i])) sums.solved++;
    if (isReachable(run, i)) { sums.reach++; sums.support += run.support[i]; }
  }
  return sums;
}

function keyFigure(value, text, tip) {
  const big = element("b"), small = element("span");
  big.textContent = value;
  small.textContent = text;
  return element("div", { class: "figure", tip }, big, small);
}

// A share that is known up to the undecided: from what is proved to what is not excluded.
function reachFigure(proved, open, total, text, tip) {
  if (!open) return keyFigure(percent(proved / total), text, tip);
  const low = (100 * proved) / total, high = (100 * (proved + open)) / total;
  return keyFigure(`${low.toFixed(1)}–${high.toFixed(1)} %`, text, [...tip, `${count(open)} more are undecided: proved to not excluded`]);
}

function drawFigures(run, shown) {
  // A node without an answer counts neither as reachable nor as unreachable.
  const sums = tally(run), wrong = sums.reachable + sums.unreachable;
  const best = bestRepair(shown);
  byId("key-figures").replaceChildren(
    keyFigure(count(run.count), `${run.selection}, ${run.classCount} classes`),
    keyFigure(percent(sums.right / run.count), "frozen model right", [`${count(sums.right)} of ${count(run.count)} nodes`]),
    reachFigure(sums.reach, sums.open, sums.solved + sums.open, "true class reachable", ["Some reweighting of the frozen messages makes the true class win", `${count(sums.reach)} of ${count(sums.solved + sums.open)} nodes`]),
    reachFigure(sums.reachable, sums.undecided, wrong + sums.undecided, "of errors reachable", [`${count(sums.reachable)} of ${count(wrong + sums.undecided)} errors could be mended by reweighting alone`]),
    keyFigure(figure(sums.support / sums.reach, 2), "terms in a witness, on average"),
    ...(best ? [keyFigure(`${best.mean.toFixed(1)} %`, `best repair: ${best.title}`)] : []),
  );
}

function drawStudyFigures(cases, shown) {
  const best = bestRepair(shown);
  byId("key-figures").replaceChildren(
    keyFigure(count(cases.length), cases.length === 1 ? "case" : "cases"),
    keyFigure(`${momentsOf(shown.methods[0].values).mean.toFixed(1)} %`, `${shown.dataset} × ${shown.backbone}: ${shown.methods[0].title}`),
    ...(best ? [keyFigure(`${best.mean.toFixed(1)} %`, `best repair: ${best.title}`)] : []),
  );
}

function bestRepair(shown) {
  const repairs = shown.methods.filter((method) => method.key !== "frozen");
  const means = repairs.map((method) => ({ title: method.title, mean: momentsOf(method.values).mean }));
  return means.sort((a, b) => b.mean - a.mean)[0];
}

function accuracyCard(shown) {
  const rows = shown.methods.map((method, j) => ({
    title: method.title, values: method.values, paper: method.paper, look: lookOf(method.key, method.kind, j - 1),
  }));
  const splits = shown.methods[0].values.length;
  chartCard("Accuracy", `${shown.dataset} × ${shown.backbone}, test nodes, ${splits} split${splits > 1 ? "s" : ""}`, (width) => dotPlot(width, rows, "test accuracy (%)"));
}

// Every method's lead over the frozen model, one dot a case.
function gainCard(cases) {
  const gains = new Map();
  for (const { methods } of cases) {
    const frozen = momentsOf(methods[0].values).mean;
    methods.slice(1).forEach((method, j) => {
      const row = gains.get(method.key) || { title: method.title, values: [], look: lookOf(method.key, method.kind, j) };
      row.values.push(momentsOf(method.values).mean - frozen);
      gains.set(method.key, row);
    });
  }
  if (!gains.size) return;
  chartCard("Gain over Frozen, all cases", `Difference of test accuracies, each case the mean of its splits; ${count(cases.length)} cases`, (width) => dotPlot(width, [...gains.values()], "points of accuracy over Frozen", "case", [-100, 100]));
}

function movesCard(run) {
  if (!run.repairs.length) return;
  const rows = run.repairs.map((repair) => {
    const row = { title: repair.title, corrected: 0, broken: 0, kept: 0, missed: 0, within: 0 };
    for (let i = 0; i < run.count; i++) {
      const outcome = outcomeOf(run, repair, i);
      row[outcome]++;
      if (outcome === "corrected" && isReachable(run, i)) row.within++;
    }
    return row;
  });
  chartCard("What each repair moved", `Nodes of this split whose prediction became right or wrong, of ${count(run.count)}`, (width) => movesPlot(width, rows, run.count));
}

// With several cases or splits one dot each; with a single run one dot a class.
function reachCard(run, cases, index) {
  const reached = cases.filter((entry) => entry.reach.true_class_reach);
  if (reached.length > 1) {
    const dots = reached.map((entry) => caseDot(entry, entry === cases[index]));
    chartCard("Reach and accuracy", "One dot a case; above the dashed line there is evidence that the frozen model does not use", (width) => scatter(width, dots, "frozen test accuracy (%)", "true-class reach (%)"));
  } else if (run) {
    chartCard("Reach and accuracy", "One dot a true class, its size the number of nodes; the height above the dashed line is evidence that the frozen model does not use", (width) => scatter(width, classDots(run), "frozen accuracy (%)", "true-class reach (%)"));
  }
}

function caseDot(entry, shown) {
  const x = momentsOf(entry.methods[0].values).mean, y = momentsOf(entry.reach.true_class_reach).mean;
  const text = `${entry.dataset} × ${entry.backbone}`;
  return { x, y, text, shown, size: shown ? 7 : 5, tip: [text, `frozen accuracy ${x.toFixed(1)} %`, `true-class reach ${y.toFixed(1)} %`] };
}

function classDots(run) {
  const sums = run.classes.map(() => [0, 0, 0, 0]);
  for (let i = 0; i < run.count; i++) {
    if (Number.isNaN(run.margins[i]) && tailVerdict(run, i) !== "undecided") continue;
    const entry = sums[run.labels[run.nodes[i]]];
    entry[0]++;
    entry[3] += tailVerdict(run, i) === "undecided";
    entry[1] += isRight(run, i);
    entry[2] += isReachable(run, i);
  }
  const most = Math.max(...sums.map((entry) => entry[0]));
  return sums.flatMap(([n, right, reach, open], c) => n ? [{
    x: (100 * right) / n, y: (100 * reach) / n, text: run.shortClasses[c], size: 4 + 9 * Math.sqrt(n / most),
    tip: [run.classes[c], `${count(n)} nodes`, `frozen accuracy ${percent(right / n)}`, `true-class reach ${percent(reach / n)}${open ? ` proved, ${percent((reach + open) / n)} not excluded` : ""}`],
  }] : []);
}

function seriesOf(run) { return run.tail ? [...STATUS_SERIES, { colour: "--other", text: "wrong, undecided" }] : STATUS_SERIES; }
const STATUS_SERIES = [
  { colour: "--right", text: "frozen right" },
  { colour: "--shifted", text: "wrong, reachable" },
  { colour: "--rival", text: "wrong, unreachable" },
];
function statusPart(run, i) { return { right: 0, reachable: 1, unreachable: 2, undecided: 3 }[statusOf(run, i)]; }

function marginCard(run) {
  const values = Array.from(run.margins).filter((v) => !Number.isNaN(v)).sort((a, b) => a - b);
  if (!values.length) return;
  // The outer two percent at each end are gathered in the end bins, so that outliers do not flatten the rest.
  const low = Math.min(0, values[Math.floor(values.length * 0.02)]), high = Math.max(0, values[Math.ceil(values.length * 0.98) - 1]);
  const step = ticks(low, high, 24)[1] - ticks(low, high, 24)[0] || 1;
  const first = Math.floor(low / step), bins = [];
  for (let b = first; b * step < high || !bins.length; b++) bins.push({ label: tickWords(b * step), tip: `γ from ${tickWords(b * step)} to ${tickWords((b + 1) * step)}`, parts: [0, 0, 0] });
  bins[0].tip = `γ below ${tickWords((first + 1) * step)}`;
  bins[bins.length - 1].tip = `γ above ${bins[bins.length - 1].label}`;
  for (let i = 0; i < run.count; i++) {
    const margin = run.margins[i];
    if (Number.isNaN(margin)) continue;
    const b = margin > REACHABLE ? Math.max(-first, Math.floor(margin / step) - first) : Math.floor(Math.min(margin, -1e-12) / step) - first;
    bins[Math.min(bins.length - 1, Math.max(0, b))].parts[statusPart(run, i)]++;
  }
  const title = run.tail ? "Best margin found of the true class" : "Best margin γ of the true class";
  chartCard(title, run.tail ? "The largest worst-rival margin that was found; right of the threshold the true class can win, left of it that is excluded by bounds. Undecided nodes are left out" : "The largest worst-rival margin that any admissible reweighting reaches, in logits; right of the threshold the true class can win", (width) => stackedColumns(width, bins, STATUS_SERIES, "γ (logits)", false, [{ place: -first, text: "γ = 0" }]));
}

function degreeCard(run) {
  const edges = [0, 1, 2, 3, 5, 9, 17, 33, 65, 129, 257, 513, 1025, Infinity];
  const bins = edges.slice(0, -1).map((low, j) => {
    const high = edges[j + 1] - 1;
    const label = high === Infinity ? `${low}+` : low === high ? String(low) : `${low}–${high}`;
    return { label, tip: `degree ${label}`, parts: seriesOf(run).map(() => 0) };
  });
  for (let i = 0; i < run.count; i++) {
    if (statusOf(run, i) === "unknown") continue;
    bins[edges.findIndex((edge) => run.degree[i] < edge) - 1].parts[statusPart(run, i)]++;
  }
  const used = bins.filter((bin) => bin.parts.some((n) => n));
  chartCard("Reach by degree", "Share of nodes; the number of nodes stands above each column", (width) => stackedColumns(width, used, seriesOf(run), "neighbours", true));
}

function homophilyCard(run) {
  const bins = Array.from({ length: 6 }, (_, j) => {
    const label = j === 0 ? "0" : `${20 * (j - 1) || ">0"}–${20 * j}`;
    return { label, tip: j === 0 ? "no neighbour shares the class" : `${label} % of the neighbours share the class`, parts: seriesOf(run).map(() => 0) };
  });
  for (let i = 0; i < run.count; i++) {
    const h = run.homophily[i];
    if (!Number.isNaN(h) && statusOf(run, i) !== "unknown") bins[h === 0 ? 0 : Math.min(5, 1 + Math.floor(h * 5 - 1e-9))].parts[statusPart(run, i)]++;
  }
  if (bins.some((bin) => bin.parts.some((n) => n))) {
    chartCard("Reach by local homophily", "Share of nodes, by how many of a node's neighbours have its class", (width) => stackedColumns(width, bins, seriesOf(run), "neighbours of the same class (%)", true));
  }
}

function supportCard(run) {
  // How few terms suffice is known of linear programs only.
  const bound = run.tail ? Infinity : run.classCount + run.groupCount - 2;
  let most = 1;
  for (let i = 0; i < run.count; i++) if (isReachable(run, i)) most = Math.max(most, run.support[i]);
  const bins = Array.from({ length: Math.min(bound, most + 1) }, (_, j) => ({ label: String(j + 1), tip: `${j + 1} active term${j ? "s" : ""}`, parts: [0, 0] }));
  for (let i = 0; i < run.count; i++) {
    if (isReachable(run, i) && run.support[i]) bins[run.support[i] - 1].parts[isRight(run, i) ? 0 : 1]++;
  }
  chartCard("Size of the witness", `Active terms in the ${run.tail ? "mixture that lets the true class win, of nodes where one was found" : `best mixture of reachable nodes; no witness needs more than ${bound} here`}`, (width) => stackedColumns(width, bins, STATUS_SERIES.slice(0, 2), "active terms", false));
}

const PAPER_ROWS = [["true_class_reach", "True-class reach (%)"], ["error_reach", "Error reach (%)"], ["support", "Active terms"]];

function paperCard(shown) {
  const table = element("table"), body = element("tbody");
  const line = (tag, cells) => element("tr", {}, ...cells.map((cell, j) => {
    const made = element(tag, j ? {} : { class: "text" });
    made.textContent = cell;
    return made;
  }));
  table.append(element("thead", {}, line("th", ["", "Here", "Deviation", "Published", "Difference"])), body);
  const add = (title, values, paper) => {
    if (!values || !values.length || paper === null || paper === undefined) return;
    const { mean, deviation } = momentsOf(values);
    body.append(line("td", [title, mean.toFixed(2), values.length > 1 ? deviation.toFixed(2) : "–", paper.toFixed(paper < 10 ? 2 : 1), signed(Math.round(100 * (mean - paper)) / 100, 2)]));
  };
  for (const method of shown.methods) add(`${method.title}, accuracy (%)`, method.values, method.paper);
  for (const [key, title] of PAPER_ROWS) add(title, shown.reach[key], shown.paper[key]);
  chartCard("Beside the published numbers", `${shown.dataset} × ${shown.backbone}, means over ${shown.methods[0].values.length} split${shown.methods[0].values.length > 1 ? "s" : ""} (published: ten)`, () => table);
}
