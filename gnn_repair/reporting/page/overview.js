// The overview: what the run as a whole looks like, and the cases of the study around it.

function drawOverview(run, study) {
  const { cases } = study;
  const chosen = byId("case");
  byId("case-choice").hidden = cases.length < 2;
  fill(
    chosen,
    cases.map((entry, j) => [j, `${entry.dataset} × ${entry.backbone}`]),
    Math.max(0, study.shown),
  );
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
  if (run) lostCard(run);
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
  const sums = {
    right: 0,
    reachable: 0,
    unreachable: 0,
    undecided: 0,
    unknown: 0,
    reach: 0,
    support: 0,
    solved: 0,
    open: 0,
  };
  for (let i = 0; i < run.count; i++) {
    sums[statusOf(run, i)]++;
    if (tailVerdict(run, i) === "undecided") sums.open++;
    if (!Number.isNaN(run.margins[i])) sums.solved++;
    if (isReachable(run, i)) {
      sums.reach++;
      sums.support += run.support[i];
    }
  }
  return sums;
}

function keyFigure(value, text, tip) {
  const big = element("b"),
    small = element("span");
  big.textContent = value;
  small.textContent = text;
  return element("div", { class: "figure", tip }, big, small);
}

// A share that is known up to the undecided: from what is proved to what is not excluded.
function reachFigure(proved, open, total, text, tip) {
  if (!open) return keyFigure(percent(proved / total), text, tip);
  const low = (100 * proved) / total,
    high = (100 * (proved + open)) / total;
  return keyFigure(`${low.toFixed(1)}–${high.toFixed(1)} %`, text, [
    ...tip,
    `${count(open)} more are undecided: proved to not excluded`,
  ]);
}

function drawFigures(run, shown) {
  // A node without an answer counts neither as reachable nor as unreachable.
  const sums = tally(run),
    wrong = sums.reachable + sums.unreachable;
  const best = bestRepair(shown);
  byId("key-figures").replaceChildren(
    keyFigure(count(run.count), `${run.selection}, ${run.classCount} classes`),
    keyFigure(percent(sums.right / run.count), "frozen model right", [
      `${count(sums.right)} of ${count(run.count)} nodes`,
    ]),
    reachFigure(sums.reach, sums.open, sums.solved + sums.open, "true class reachable", [
      "Some reweighting of the frozen messages makes the true class win",
      `${count(sums.reach)} of ${count(sums.solved + sums.open)} nodes`,
    ]),
    reachFigure(sums.reachable, sums.undecided, wrong + sums.undecided, "of errors reachable", [
      `${count(sums.reachable)} of ${count(wrong + sums.undecided)} errors ` +
        "could be mended by reweighting alone",
    ]),
    keyFigure(figure(sums.support / sums.reach, 2), "terms in a witness, on average"),
    ...(best ? [keyFigure(`${best.mean.toFixed(1)} %`, `best repair: ${best.title}`)] : []),
  );
}

function drawStudyFigures(cases, shown) {
  const best = bestRepair(shown);
  byId("key-figures").replaceChildren(
    keyFigure(count(cases.length), cases.length === 1 ? "case" : "cases"),
    keyFigure(
      `${momentsOf(shown.methods[0].values).mean.toFixed(1)} %`,
      `${shown.dataset} × ${shown.backbone}: ${shown.methods[0].title}`,
    ),
    ...(best ? [keyFigure(`${best.mean.toFixed(1)} %`, `best repair: ${best.title}`)] : []),
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

function accuracyCard(shown) {
  const rows = shown.methods.map((method, j) => ({
    title: method.title,
    values: method.values,
    paper: method.paper,
    look: lookOf(method.key, method.kind, j - 1),
  }));
  const splits = shown.methods[0].values.length;
  chartCard(
    "Accuracy",
    `${shown.dataset} × ${shown.backbone}, test nodes, ${splits} split${splits > 1 ? "s" : ""}`,
    (width) => dotPlot(width, rows, "test accuracy (%)"),
  );
}

// Every method's lead over the frozen model, one dot a case.
function gainCard(cases) {
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
  chartCard(
    "Gain over Frozen, all cases",
    `Difference of test accuracies, each case the mean of its splits; ${count(cases.length)} cases`,
    (width) =>
      dotPlot(width, [...gains.values()], "points of accuracy over Frozen", "case", [-100, 100]),
  );
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
  chartCard(
    "What each repair moved",
    `Nodes of this split whose prediction became right or wrong, of ${count(run.count)}`,
    (width) => movesPlot(width, rows, run.count),
  );
}

// With several cases or splits one dot each; with a single run one dot a class.
function reachCard(run, cases, index) {
  const reached = cases.filter((entry) => entry.reach.true_class_reach);
  if (reached.length > 1) {
    const dots = reached.map((entry) => caseDot(entry, entry === cases[index]));
    chartCard(
      "Reach and accuracy",
      "One dot a case; above the dashed line there is evidence that the frozen model does not use",
      (width) => scatter(width, dots, "frozen test accuracy (%)", "true-class reach (%)"),
    );
  } else if (run) {
    chartCard(
      "Reach and accuracy",
      "One dot a true class, its size the number of nodes; the height above the dashed line is " +
        "evidence that the frozen model does not use",
      (width) => scatter(width, classDots(run), "frozen accuracy (%)", "true-class reach (%)"),
    );
  }
}

function caseDot(entry, shown) {
  const x = momentsOf(entry.methods[0].values).mean,
    y = momentsOf(entry.reach.true_class_reach).mean;
  const text = `${entry.dataset} × ${entry.backbone}`;
  return {
    x,
    y,
    text,
    shown,
    size: shown ? 7 : 5,
    tip: [text, `frozen accuracy ${x.toFixed(1)} %`, `true-class reach ${y.toFixed(1)} %`],
  };
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
  return sums.flatMap(([n, right, reach, open], c) =>
    n
      ? [
          {
            x: (100 * right) / n,
            y: (100 * reach) / n,
            text: run.shortClasses[c],
            size: 4 + 9 * Math.sqrt(n / most),
            tip: [
              run.classes[c],
              `${count(n)} nodes`,
              `frozen accuracy ${percent(right / n)}`,
              `true-class reach ${percent(reach / n)}` +
                (open ? ` proved, ${percent((reach + open) / n)} not excluded` : ""),
            ],
          },
        ]
      : [],
  );
}

const PAPER_ROWS = [
  ["true_class_reach", "True-class reach (%)"],
  ["error_reach", "Error reach (%)"],
  ["support", "Active terms"],
];

function paperCard(shown) {
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
    element("thead", {}, line("th", ["", "Here", "Deviation", "Published", "Difference"])),
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
  const splits = shown.methods[0].values.length;
  chartCard(
    "Beside the published numbers",
    `${shown.dataset} × ${shown.backbone}, means over ${splits} split${splits > 1 ? "s" : ""} ` +
      "(published: ten)",
    () => table,
  );
}
