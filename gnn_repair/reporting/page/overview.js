// The overview's cards: what the run as a whole looks like, and the study around it.

function drawOverview(run, study, index) {
  const { cases } = study;
  const chosen = byId("case");
  // A run's page is about its own case: a choice of another would change half of it.
  byId("case-choice").hidden = Boolean(run) || cases.length < 2;
  const shown = run ? study.shown : index;
  fill(
    chosen,
    cases.map((entry, j) => [j, caseName(entry)]),
    shown,
  );
  drawStory(run, study);
  layOut(run, cases, shown);
}

function layOut(run, cases, index) {
  byId("charts").replaceChildren();
  byId("more-charts").replaceChildren();
  FOLDED.length = 0;
  const shown = cases[index];
  if (run) {
    drawFigures(run);
    changeCard(run);
    confusionCard(run);
    movesCard(run);
    lostCard(run);
    classCard(run);
    if (shown.methods.length > 1) accuracyCard(run, shown, true);
    marginCard(run);
    degreeCard(run);
    homophilyCard(run);
    supportCard(run);
  } else {
    drawStudyFigures(cases, shown);
    accuracyCard(run, shown, false);
  }
  const more = Boolean(run);
  reachCard(cases, index, more);
  if (cases.length > 1) gainCard(cases, more);
  if (Object.keys(shown.paper).length) paperCard(shown, more);
  byId("more").hidden = !byId("more-charts").children.length;
}

// A tile: a number, what it is, and what it is to be compared with.
function keyFigure(value, text, beside = "", { tip = null, go = null } = {}) {
  const big = element("b"),
    small = element("span"),
    about = element("small", { class: "beside" });
  big.textContent = value;
  small.append(...glossed(text));
  about.textContent = beside;
  if (!go) return element("div", { class: "figure", tip }, big, small, about);
  const made = element(
    "button",
    { type: "button", class: "figure go", tip: [...(tip || []), "click to see them"] },
    big,
    small,
    about,
  );
  made.go = go;
  return made;
}

// A share that is known up to the undecided: from what is proved to what is not excluded.
function reachFigure(proved, open, total, text, beside, { tip, go }) {
  if (!open) return keyFigure(percent(proved / total), text, beside, { tip, go });
  const low = (100 * proved) / total,
    high = (100 * (proved + open)) / total;
  return keyFigure(`${low.toFixed(1)}–${high.toFixed(1)}\u00a0%`, text, beside, {
    tip: [...tip, `${count(open)} more are undecided: proved to not excluded`],
    go,
  });
}

function drawFigures(run) {
  // A node without an answer counts neither as reachable nor as unreachable.
  const sums = tally(run),
    wrong = sums.reachable + sums.unreachable,
    best = bestRepairOf(run),
    { own, others } = neededChanges(run),
    everyone = run.chance_summary && run.chance_summary.everyone;
  byId("key-figures").replaceChildren(
    keyFigure(percent(sums.right / run.count), "right", `${count(run.count)} ${selected(run)}`, {
      tip: [`${count(sums.right)} of ${count(run.count)} ${selected(run)}`],
      go: { status: "right" },
    }),
    ...(wrong + sums.undecided
      ? [
          reachFigure(
            sums.reachable,
            sums.undecided,
            wrong + sums.undecided,
            "of errors could be fixed by other weights (error reach)",
            run.chance_summary ? `chance ${chanceShare(run.chance_summary)}` : "",
            {
              tip: [
                `${count(sums.reachable)} of ${errorsOf(wrong + sums.undecided)}`,
                ...(run.chance_summary ? [run.chance_summary.words] : []),
              ],
              go: { status: "reachable" },
            },
          ),
        ]
      : []),
    ...(own.length
      ? [
          keyFigure(
            shareWords(median(own)),
            `of a ${run.noun}'s weight must move to fix such an error (median)`,
            others.length ? `other classes ${shareWords(median(others))}` : "",
            { tip: [`of the smallest changes of ${errorsOf(own.length)}`] },
          ),
        ]
      : []),
    reachFigure(
      sums.reach,
      sums.open,
      sums.solved + sums.open,
      "true class within reach",
      known(everyone) ? `chance ${everyone.toFixed(1)} %` : "",
      {
        tip: [
          "Right or wrong: some weighting of the messages makes the true class win",
          `${count(sums.reach)} of ${counted(run, sums.solved + sums.open)}; ` +
            `${figure(sums.support / sums.reach, 2)} terms in a witness, on average`,
        ],
        go: { status: "can" },
      },
    ),
    ...(best
      ? [
          keyFigure(
            `${ownAccuracy(run, run.repairs[best.j].key).toFixed(1)} %`,
            `right with ${best.title}`,
            best.chosen,
            { go: { repair: `${best.j} corrected` }, tip: [`${count(best.corrected)} corrected`] },
          ),
        ]
      : []),
  );
}

function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = (sorted.length - 1) / 2;
  return (sorted[Math.floor(middle)] + sorted[Math.ceil(middle)]) / 2;
}

// The share of classes neither true nor predicted that could win at the same errors.
function chanceShare({ low, high }) {
  const [from, to] = [low.toFixed(1), high.toFixed(1)];
  return `${from === to ? from : `${from}–${to}`}\u00a0%`;
}

function drawStudyFigures(cases, shown) {
  const best = bestRepair(shown),
    scope = methodScope(shown);
  byId("key-figures").replaceChildren(
    keyFigure(count(cases.length), cases.length === 1 ? "case" : "cases", "the whole study"),
    keyFigure(
      `${momentsOf(shown.methods[0].values).mean.toFixed(1)} %`,
      shown.methods[0].title,
      scope,
    ),
    ...(best ? [keyFigure(`${best.mean.toFixed(1)} %`, `best repair: ${best.title}`, scope)] : []),
  );
}

function bestRepair(shown) {
  const repairs = shown.methods.filter((method) => method.key !== "frozen");
  const means = repairs.map((method) => ({
    title: method.title,
    mean: momentsOf(method.values).mean,
  }));
  return means.sort((a, b) => b.mean - a.mean)[0];
}

// The means of the stored splits; with a run its own model's numbers as rings among them.
function accuracyCard(run, shown, more) {
  const own = ownSplit(run, shown) >= 0 || (run && shown.methods[0].splits.length === 1);
  const rows = shown.methods
    .filter((method) => changesSomething(run, shown, method))
    .map((method, j) => {
      const place = run ? run.repairs.findIndex((repair) => repair.key === method.key) : -1;
      const here = run && own ? ownAccuracy(run, method.key) : null;
      return {
        title: method.title,
        values: method.values,
        paper: method.paper,
        own: method.values.length > 1 || changedFrom(method.values[0], here) ? here : null,
        look: lookOf(method.key, method.kind, j - 1),
        go: here === null ? null : place < 0 ? { status: "wrong" } : { repair: `${place} wrong` },
        goWords: run ? `click to see the ${run.nouns} that it gets wrong` : "",
      };
    });
  const each = shown.methods[0].splits.every(known) ? "split" : "run";
  const ring =
    run && known(run.split) ? `split ${run.split}, this page's model` : "this page's model";
  chartCard(
    "Accuracy",
    shown.methods[0].values.length > 1
      ? "One row per method. The number is the mean over the splits; every split is a faint dot"
      : "One row per method",
    (width) => dotPlot(width, rows, `accuracy on ${shown.on} (%)`, each, [0, 100], ring),
    { scope: methodScope(shown), more },
  );
}

// Temperatures and their like change no prediction, so that an accuracy says nothing of them.
function changesSomething(run, shown, method) {
  if (method.key === "frozen") return true;
  const repair = run && run.repairs.find((entry) => entry.key === method.key);
  if (repair) return repairChanges(run, repair);
  const { values } = shown.methods[0];
  return values.length < 2 || method.values.some((value, j) => value !== values[j]);
}
function repairChanges(run, repair) {
  return repair.predictions.some((now, i) => now !== run.predictions[run.nodes[i]]);
}

// A stored number that the page's own model does not repeat, by more than rounding.
function changedFrom(stored, here) {
  return here !== null && Math.abs(stored - here) > 1e-6;
}

// Every method's lead over the frozen model, one dot per case.
function gainCard(cases, more) {
  const gains = new Map();
  for (const { methods } of cases) {
    const frozen = momentsOf(methods[0].values).mean;
    methods.slice(1).forEach((method, j) => {
      const row = gains.get(method.key) || {
        title: method.title,
        values: [],
        look: lookOf(method.key, method.kind, j),
      };
      row.values.push(momentsOf(method.values).mean - frozen);
      gains.set(method.key, row);
    });
  }
  if (!gains.size) return;
  const some = [...gains.values()].filter((row) => row.values.length < cases.length),
    fewer = some.map((row) => `. ${row.title}: ${row.values.length} of ${cases.length} cases`);
  chartCard(
    "Gain over Frozen, all cases",
    `Difference of accuracies, one dot per case${fewer.join("")}`,
    (width) =>
      dotPlot(width, [...gains.values()], "points of accuracy over Frozen", "case", [-100, 100]),
    { scope: studyScope(cases), more },
  );
}

function movesCard(run) {
  const still = run.repairs.filter((repair) => !repairChanges(run, repair)),
    rows = run.repairs.flatMap((repair, j) => (still.includes(repair) ? [] : [outcomesOf(run, j)]));
  if (!rows.length) return;
  const others = capital(joined(still.map((repair) => repair.title))),
    none = still.length ? ` ${others} change${still.length > 1 ? "" : "s"} no prediction.` : "";
  chartCard(
    "What each repair did",
    `Predictions that became right or wrong. A bar shows its ${run.nouns}.${none}`,
    (width) => movesPlot(width, rows, run.count),
  );
}

// One dot per case.
function reachCard(cases, index, more) {
  const reached = cases.filter((entry) => entry.reach.true_class_reach);
  if (reached.length < 2) return;
  const dots = reached.map((entry) => caseDot(entry, entry === cases[index]));
  chartCard(
    "Reach and accuracy, all cases",
    "One dot per case; above the dashed line there is evidence that the frozen model does not use" +
      (dots.some((dot) => known(dot.chance)) ? ". A bar: chance, at the model's errors" : ""),
    (width) => scatter(width, dots, "frozen accuracy (%)", "true-class reach (%)"),
    { scope: studyScope(reached), more },
  );
}

function caseDot(entry, shown) {
  const x = momentsOf(entry.methods[0].values).mean,
    y = momentsOf(entry.reach.true_class_reach).mean;
  const text = caseName(entry);
  // Of right nodes the true class wins as it is, so that chance counts at the others.
  const { chance_reach: chance } = entry.reach;
  return {
    x,
    y,
    chance: chance && x + ((100 - x) * momentsOf(chance).mean) / 100,
    text,
    shown,
    size: shown ? 7 : 5,
    tip: [
      text,
      `frozen accuracy ${x.toFixed(1)} %`,
      `true-class reach ${y.toFixed(1)} %`,
      ...(entry.reach.error_reach ? [errorReachWords(entry.reach)] : []),
    ],
  };
}

function errorReachWords(reach) {
  const mean = (values) => `${momentsOf(values).mean.toFixed(1)} %`,
    chance = reach.chance_reach ? `, chance ${mean(reach.chance_reach)}` : "";
  return `error reach ${mean(reach.error_reach)}${chance}`;
}

const PAPER_ROWS = [
  ["true_class_reach", "True-class reach (%)"],
  ["error_reach", "Error reach (%)"],
  ["support", "Active terms"],
];

function paperCard(shown, more) {
  const table = element("table"),
    body = element("tbody");
  const line = (tag, cells) =>
    element(
      "tr",
      {},
      ...cells.map((cell, j) => {
        const made = element(tag, j ? {} : { class: "text" });
        made.textContent = cell;
        return made;
      }),
    );
  table.append(
    element("thead", {}, line("th", ["Quantity", "Here", "Deviation", "Published", "Difference"])),
    body,
  );
  const add = (title, values, paper) => {
    if (!values || !values.length || paper === null || paper === undefined) return;
    const { mean, deviation } = momentsOf(values);
    body.append(
      line("td", [
        title,
        mean.toFixed(2),
        values.length > 1 ? deviation.toFixed(2) : "–",
        paper.toFixed(paper < 10 ? 2 : 1),
        signed(Math.round(100 * (mean - paper)) / 100, 2),
      ]),
    );
  };
  for (const method of shown.methods)
    add(`${method.title}, accuracy (%)`, method.values, method.paper);
  for (const [key, title] of PAPER_ROWS) add(title, shown.reach[key], shown.paper[key]);
  chartCard(
    "Beside the published numbers",
    "Published: test nodes, means over ten splits",
    () => table,
    { scope: methodScope(shown), table: true, more },
  );
}

// Cards of the overview that count the nodes of one run.

const STATUS_SERIES = [
  { colour: "--right", text: "frozen right", go: { status: "right" } },
  { colour: "--shifted", text: "wrong, reachable", go: { status: "reachable" } },
  { colour: "--rival", text: "wrong, unreachable", go: { status: "unreachable" } },
];
function seriesOf(run) {
  const open = { colour: "--other", text: "wrong, undecided", go: { status: "undecided" } };
  return tally(run).undecided ? [...STATUS_SERIES, open] : STATUS_SERIES;
}
function statusPart(run, i) {
  return { right: 0, reachable: 1, unreachable: 2, undecided: 3 }[statusOf(run, i)];
}

function marginCard(run) {
  const values = Array.from(run.margins)
    .filter((v) => !Number.isNaN(v))
    .sort((a, b) => a - b);
  if (!values.length) return;
  // The outer two percent at each end are gathered in the end bins, so that outliers do not
  // flatten the rest.
  const low = Math.min(0, values[Math.floor(values.length * 0.02)]),
    high = Math.max(0, values[Math.ceil(values.length * 0.98) - 1]);
  const step = ticks(low, high, 24)[1] - ticks(low, high, 24)[0] || 1;
  const bins = marginBins(low, high, step);
  const first = -bins.findIndex((bin) => bin.range[0] === 0),
    [axis, zero] = run.head ? ["margin (logits)", "margin 0"] : ["γ (logits)", "γ = 0"];
  for (let i = 0; i < run.count; i++) {
    if (Number.isNaN(run.margins[i])) continue;
    bins.find((bin) => inMargins(run.margins[i], bin.range)).parts[statusPart(run, i)]++;
  }
  chartCard(
    run.head ? "Best margin found of the true class" : "Best margin γ of the true class",
    run.head
      ? "The largest worst-rival margin that was found; right of the threshold the true class " +
          `can win, left of it that is excluded by bounds. Undecided ${run.nouns} are left out`
      : "The largest worst-rival margin that any admissible reweighting reaches, in " +
          "logits; right of " +
          "the threshold the true class can win",
    (width) =>
      stackedColumns(width, bins, STATUS_SERIES, axis, false, [{ place: -first, text: zero }]),
    { more: true },
  );
}

// Bins of γ with an edge at zero, so that no column mixes reachable and unreachable; the outer ones
// are open.
function marginBins(low, high, step) {
  const first = Math.min(-1, Math.floor(low / step)),
    last = Math.max(1, Math.ceil(high / step));
  return Array.from({ length: last - first }, (_, j) => {
    const edge = (b) => Number((b * step).toPrecision(12)),
      from = edge(first + j),
      to = edge(first + j + 1);
    const range = [j === 0 ? -Infinity : from, first + j + 1 === last ? Infinity : to];
    return {
      range,
      label: tickWords(from),
      tip: pickWords("gamma", range),
      parts: [0, 0, 0],
      go: { gamma: rangeText(range) },
    };
  });
}

// Columns of nodes by status, one per bin, with chance beside the share of errors within reach.
// `bins` is [{label, tip, go, has(i)}].
function statusCard(run, title, caption, axis, bins, options = {}) {
  const made = bins.map((bin) => {
    const members = [];
    for (let i = 0; i < run.count; i++)
      if (statusOf(run, i) !== "unknown" && bin.has(i)) members.push(i);
    const parts = seriesOf(run).map(() => 0);
    for (const i of members) parts[statusPart(run, i)]++;
    const wrong = members.filter((i) => !isRight(run, i)),
      chance = chanceAt(run, wrong);
    if (!chance) return { ...bin, parts };
    const right = 1 - wrong.length / members.length;
    return {
      ...bin,
      parts,
      chance: right + (1 - right) * chance[0],
      chanceWords:
        `of its errors ${percent(parts[1] / wrong.length, 0)} reachable, ` + chanceWords(chance),
    };
  });
  const used = options.all ? made : made.filter((bin) => bin.parts.some((n) => n));
  // One column compares nothing.
  if (made.filter((bin) => bin.parts.some((n) => n)).length < 2) return;
  chartCard(
    title,
    caption,
    (width) => stackedColumns(width, used, seriesOf(run), axis, true),
    options,
  );
}

function classCard(run) {
  const bins = run.classes.map((name, c) => ({
    label: run.shortClasses[c],
    isName: true,
    tip: name,
    go: { label: String(c) },
    has: (i) => run.labels[run.nodes[i]] === c,
  }));
  statusCard(
    run,
    "Reach by class",
    `Share of each true class's ${run.nouns}; their number stands above each column`,
    "true class",
    bins,
  );
}

function degreeCard(run) {
  const edges = [0, 1, 2, 3, 5, 9, 17, 33, 65, 129, 257, 513, 1025, Infinity];
  const bins = edges.slice(0, -1).map((low, j) => {
    const high = edges[j + 1] - 1;
    const label = high === Infinity ? `${low}+` : low === high ? String(low) : `${low}–${high}`;
    return {
      label,
      tip: `${run.graph_starts ? "nodes:" : "degree"} ${label}`,
      go: { from: String(low), to: high === Infinity ? "" : String(high) },
      has: (i) => run.degree[i] >= low && run.degree[i] <= high,
    };
  });
  statusCard(
    run,
    run.graph_starts ? "Reach by number of nodes" : "Reach by degree",
    `Share of ${run.nouns}; their number stands above each column`,
    run.graph_starts ? "nodes" : "neighbours",
    bins,
    { more: true },
  );
}

function homophilyCard(run) {
  const bins = Array.from({ length: 6 }, (_, j) => {
    const label = j === 0 ? "0" : `${20 * (j - 1) || ">0"}–${20 * j}`,
      range = j === 0 ? [-Infinity, 0] : [(j - 1) / 5, j / 5];
    return {
      label,
      tip:
        j === 0 ? "no neighbour shares the class" : `${label} % of the neighbours share the class`,
      go: { homophily: j === 0 ? "~0" : `${(j - 1) / 5}~${j / 5}` },
      has: (i) => !Number.isNaN(run.homophily[i]) && inShares(run.homophily[i], range),
    };
  });
  statusCard(
    run,
    "Reach by local homophily",
    `Share of ${run.nouns}, by how many of a ${run.noun}'s neighbours have its class`,
    "neighbours of the same class (%)",
    bins,
    { all: true, more: true },
  );
}

function supportCard(run) {
  // How few terms suffice is known of linear programs only.
  const bound = run.head ? Infinity : run.classCount + run.groupCount - 2;
  const what = run.head
    ? `mixture that lets the true class win, of ${run.nouns} where one was found`
    : `best mixture of reachable ${run.nouns}; no witness needs more than ${bound} here`;
  const reached = Array.from({ length: run.count }, (_, i) => i).filter((i) => isReachable(run, i));
  if (!reached.length) return;
  // A node without messages may be right all the same; then its witness has no term.
  const most = reached.reduce((sum, i) => Math.max(sum, run.support[i]), 1),
    first = reached.some((i) => !run.support[i]) ? 0 : 1,
    last = Math.max(most, Math.min(bound, most + 1));
  const bins = Array.from({ length: last - first + 1 }, (_, j) => ({
    label: String(first + j),
    tip: `${first + j} active term${first + j === 1 ? "" : "s"}`,
    parts: [0, 0],
    go: { support: `${first + j}~${first + j}` },
  }));
  for (const i of reached) bins[run.support[i] - first].parts[isRight(run, i) ? 0 : 1]++;
  chartCard(
    "Size of the witness",
    `Active terms in the ${what}`,
    (width) =>
      stackedColumns(
        width,
        bins,
        [STATUS_SERIES[0], { ...STATUS_SERIES[1], text: "frozen wrong", go: { status: "wrong" } }],
        "active terms",
        false,
      ),
    { more: true },
  );
}

// Which classes are taken for which, and whether the evidence was there.

const MOST_CLASSES = 40;
// So few fit beside another card, in cells as wide as they need be.
const FEW_CLASSES = 9;

function confusionOf(run) {
  const C = run.classCount;
  const cells = Array.from({ length: C * C }, () => ({ n: 0, reachable: 0, open: 0, all: [] }));
  for (let i = 0; i < run.count; i++) {
    const node = run.nodes[i],
      cell = cells[run.labels[node] * C + run.predictions[node]],
      status = statusOf(run, i);
    cell.n++;
    cell.all.push(i);
    cell.reachable += status === "reachable";
    cell.open += status === "undecided" || status === "unknown";
  }
  return cells;
}

// The classes with the most nodes, in their own order, where there are too many to be drawn.
function drawnClasses(run, cells) {
  const C = run.classCount,
    all = Array.from({ length: C }, (_, c) => c);
  const size = (c) =>
    all.reduce((sum, d) => sum + cells[c * C + d].n + (c === d ? 0 : cells[d * C + c].n), 0);
  if (C <= MOST_CLASSES) return all;
  return [...all]
    .sort((a, b) => size(b) - size(a))
    .slice(0, MOST_CLASSES)
    .sort((a, b) => a - b);
}

function confusionCard(run) {
  const cells = confusionOf(run),
    drawn = drawnClasses(run, cells);
  const some = drawn.length < run.classCount ? ` The ${drawn.length} largest classes.` : "";
  chartCard(
    "Which classes are taken for which",
    "Rows: the true class. Columns: what the frozen model says. A cell's colours share out its " +
      `errors by reach (the line is where chance would end the green); its number counts ` +
      `${run.nouns}.${some}`,
    (width) => confusionPlot(width, run, cells, drawn),
    { wide: drawn.length > FEW_CLASSES },
  );
}

function confusionPlot(width, run, cells, drawn) {
  const C = run.classCount,
    longest = Math.max(...drawn.map((c) => textWidth(run.shortClasses[c], 11))),
    left = Math.min(130, width * 0.28, longest + 18) + 16;
  // A cell is as wide as a finger; what does not fit is scrolled to.
  const few = drawn.length <= FEW_CLASSES,
    wide = Math.max(24, Math.min(few ? 150 : 64, (width - left) / drawn.length)),
    whole = Math.max(width, left + wide * drawn.length);
  const svg = canvas(whole, 0, "True class against prediction, by reach");
  const heads = columnHeads(run, drawn, wide);
  const top =
    legend(svg, [{ colour: "--right", text: "right" }, ...seriesOf(run).slice(1)], 0, 12, width) +
    22 +
    heads.high;
  const high = Math.max(24, Math.min(wide, few ? 40 : 30));
  svg.style.minWidth = `${whole}px`;
  svg.setAttribute("viewBox", `0 0 ${whole} ${top + drawn.length * high + 8}`);
  const most = Math.max(
    1,
    ...drawn.flatMap((a) => drawn.map((b) => (a === b ? 0 : cells[a * C + b].n))),
  );
  drawn.forEach((c, j) => {
    svg.append(
      roomy(left - 6, top + (j + 0.5) * high + 4, run.shortClasses[c], left - 20, {
        class: "small",
        "text-anchor": "end",
      }),
      heads.draw(c, left + (j + 0.5) * wide, top - 6),
    );
  });
  svg.append(words(left, top - heads.high - 8, "predicted →", { class: "small muted" }));
  drawn.forEach((a, row) =>
    drawn.forEach((b, column) => {
      const cell = cells[a * C + b];
      if (cell.n)
        svg.append(
          confusionCell(run, cell, a, b, {
            x: left + column * wide,
            y: top + row * high,
            wide,
            high,
            most,
          }),
        );
    }),
  );
  return svg;
}

// Names above the columns; upright where they do not fit across.
function columnHeads(run, drawn, wide) {
  const widths = drawn.map((c) => textWidth(run.shortClasses[c], 11)),
    longest = Math.max(...widths);
  if (longest <= wide - 2)
    return {
      high: 12,
      draw: (c, x, y) =>
        words(x, y, run.shortClasses[c], { class: "small", "text-anchor": "middle" }),
    };
  const high = Math.min(110, longest + 8);
  return {
    high,
    draw: (c, x, y) =>
      roomy(0, 0, run.shortClasses[c], high, {
        class: "small",
        transform: `translate(${x + 4} ${y}) rotate(-90)`,
      }),
  };
}

function confusionCell(run, cell, a, b, { x, y, wide, high, most }) {
  const right = a === b,
    chance = right ? null : chanceAt(run, cell.all),
    other = cell.n - cell.reachable - cell.open;
  const lines = right
    ? [`${className(run, a)}: ${count(cell.n)} right`]
    : [
        `${className(run, a)} taken for ${className(run, b)}: ${count(cell.n)}`,
        `${count(cell.reachable)} reachable, ${count(other)} unreachable` +
          (cell.open ? `, ${count(cell.open)} without an answer` : ""),
        ...(chance
          ? [`reachable ${percent(cell.reachable / cell.n, 0)}, ${chanceWords(chance)}`]
          : []),
      ];
  const group = shape("g", {
    tip: [...lines, "click to see them"],
    go: { label: String(a), predicted: String(b) },
    "data-cell": `${a} ${b}`,
  });
  const parts = right
    ? [[1, "--right"]]
    : [
        [cell.reachable / cell.n, "--shifted"],
        [other / cell.n, "--rival"],
        [cell.open / cell.n, "--other"],
      ];
  // The area grows with the number, so that rare confusions stay small.
  const size = right ? 1 : 0.25 + 0.75 * Math.sqrt(cell.n / most);
  let from = x + 1;
  group.append(shape("rect", { x, y, width: wide, height: high, class: "cell" }));
  for (const [share, colour] of parts) {
    if (!share) continue;
    group.append(
      shape("rect", {
        x: from,
        y: y + 1 + ((high - 2) * (1 - size)) / 2,
        width: (wide - 2) * share,
        height: (high - 2) * size,
        style: `fill:var(${colour});fill-opacity:${right ? 0.55 : 0.8}`,
      }),
    );
    from += (wide - 2) * share;
  }
  if (chance) {
    const at = x + 1 + (wide - 2) * chance[0],
      inset = 1 + ((high - 2) * (1 - size)) / 2;
    group.append(
      shape("line", { x1: at, x2: at, y1: y + inset, y2: y + high - inset, class: "chance" }),
    );
  }
  if (wide > 17)
    group.append(
      words(x + wide / 2, y + high / 2 + 4, count(cell.n), {
        class: "small bold halo",
        "text-anchor": "middle",
        style: "pointer-events:none",
      }),
    );
  return group;
}

// Where the evidence was lost: what each rung of a fitted ladder gains over another candidate.

// What must move for the true class at every error, and for classes neither true nor predicted.
function neededChanges(run) {
  if (run.needed) return run.needed;
  const own = [],
    others = [],
    errors = [];
  for (let i = 0; i < run.explored && run.asked; i++) {
    if (isRight(run, i) || !run.asked[i]) continue;
    const shares = sparse(run, "class_shares", i),
      label = run.labels[run.nodes[i]],
      mine = shares.find(([c]) => c === label);
    // Where the true class could win and its change was not looked for, nothing is compared.
    if (mine && Number.isNaN(mine[1])) continue;
    errors.push(i);
    if (mine) own.push(mine[1]);
    for (const [c, share] of shares) if (c !== label && !Number.isNaN(share)) others.push(share);
  }
  run.needed = { own, others, errors: errors.length };
  return run.needed;
}

// How many errors are undone by moving at most so much weight, true class beside chance.
function changeCard(run) {
  const { own, others, errors } = neededChanges(run);
  if (own.length < 2) return;
  const rest = run.classCount - 2;
  const lines = [
    {
      colour: "--shifted",
      text: "true class",
      values: own,
      of: errors,
      go: { status: "reachable" },
    },
    ...(others.length && rest > 0
      ? [
          {
            colour: "--other",
            text: "chance: neither true nor predicted",
            values: others,
            of: errors * rest,
          },
        ]
      : []),
  ];
  const few = own.filter((share) => share <= 0.1).length;
  chartCard(
    "How much would have to change",
    `Errors that are fixed when at most so much of a ${run.noun}'s weight moves between its ` +
      `messages: ${count(few)} of ${errorsOf(errors)} need at most 10 %` +
      (run.head ? ". With a nonlinear head chance is not asked for here: it would take long" : ""),
    (width) => risingLines(width, lines),
  );
}

function lostCard(run) {
  const { lost } = run;
  if (!lost) return;
  const held = lost.nodes === 1 ? run.noun : run.nouns,
    scope = `${caseScope(run)}${count(lost.nodes)} validation ${held}, out of fold`;
  chartCard(
    "What each rung gains",
    "Accuracy gained, in points, over what stands in parentheses; the bar is one standard error. " +
      "Filled: " +
      "two standard errors in accuracy and likelihood",
    (width) => rungPlot(width, lost.rows),
    { scope, more: true },
  );
  chartCard(
    "Where the evidence was lost",
    "Accuracy gained, in points, by reading more evidence than what stands in parentheses: " +
      "overall with its standard error, and by class. Bold: above two standard errors, in " +
      "accuracy and in likelihood",
    () => element("div", { class: "scroll", id: "lost" }, lostTable(run, lost), ...lostLines(lost)),
    { scope, wide: true, table: true },
  );
}

function rungPlot(width, rows) {
  const left = Math.min(330, width * 0.5),
    rowHeight = 30,
    bottom = 8 + rows.length * rowHeight;
  const svg = canvas(width, bottom + 36, "Gain of every rung");
  const [low, high] = padded([
      0,
      ...rows.flatMap((row) => [row.gain - row.error, row.gain + row.error]),
    ]),
    x = scale(low, high, left, width - 52);
  for (const tick of ticks(low, high, width < 420 ? 3 : 6))
    svg.append(
      shape("line", { x1: x(tick), x2: x(tick), y1: 4, y2: bottom, class: tick ? "grid" : "zero" }),
      words(x(tick), bottom + 15, tickWords(tick), {
        class: "small muted",
        "text-anchor": "middle",
      }),
    );
  svg.append(
    words((left + width - 52) / 2, bottom + 31, "points of accuracy", {
      class: "small muted",
      "text-anchor": "middle",
    }),
  );
  rows.forEach((row, j) => {
    const y = 8 + (j + 0.5) * rowHeight,
      title = `${row.rung} (${row.above})`;
    svg.append(
      shape(
        "g",
        { tip: [title, row.words] },
        shape("rect", { x: 0, y: y - 14, width, height: 28, fill: "transparent" }),
        words(left - 8, y + 4, shorten(title, left - 10, 11), {
          class: "small",
          "text-anchor": "end",
        }),
        shape("line", {
          x1: x(row.gain - row.error),
          x2: x(row.gain + row.error),
          y1: y,
          y2: y,
          style: "stroke:var(--true);stroke-width:3;opacity:.6",
        }),
        marker([row.clear ? "circle" : "ring", "--true"], x(row.gain), y, 5),
        words(width - 44, y + 4, signed(row.gain, 1), { class: row.clear ? "bold" : "" }),
      ),
    );
  });
  return svg;
}

function lostTable(run, lost) {
  const cell = (tag, text, attributes = {}) => {
    const made = element(tag, attributes);
    made.textContent = text;
    return made;
  };
  const leading = (name, c) => {
    const button = goButton(name, { label: String(c) }, [name, `click to see its ${run.nouns}`]);
    return element("th", { scope: "col" }, button);
  };
  const head = element(
    "tr",
    {},
    cell("th", "Reads", { class: "text", scope: "col" }),
    cell("th", "Gain", { scope: "col" }),
    cell("th", "± s.e.", { scope: "col" }),
    ...run.classes.map(leading),
  );
  const body = lost.rows.map((row) =>
    element(
      "tr",
      { class: row.clear ? "total" : null },
      cell("td", `${row.rung} (${row.above})`, {
        class: "text",
        tip: [`${row.rung} (${row.above})`, row.words],
      }),
      cell("td", signed(row.gain, 1)),
      cell("td", figure(row.error, 1)),
      ...row.classes.map((gain) => cell("td", gain === null ? "–" : signed(gain, 1))),
    ),
  );
  return element(
    "table",
    { "data-wide": 3 },
    element("thead", {}, head),
    element("tbody", {}, ...body),
  );
}

function lostLines(lost) {
  const texts = lost.advice.map((line) => `→ ${line}`);
  texts.push(`The fitted ladder gives most weight to: ${lost.chosen}.`);
  if (lost.transductive.length) {
    const names = lost.transductive.join(", ");
    texts.push(`These read labels or features of this very graph (transductive): ${names}.`);
  }
  return texts.map((text) => {
    const line = element("p", { class: "caption" });
    line.textContent = text;
    return line;
  });
}
