// The overview: what the run as a whole looks like, and the cases of the study around it.

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
  const shown = cases[index];
  if (run) drawFigures(run);
  else drawStudyFigures(cases, shown);
  if (run) movesCard(run);
  accuracyCard(run, shown);
  if (run) {
    lostCard(run);
    marginCard(run);
    reachCard(run, cases, index);
    confusionCard(run);
    degreeCard(run);
    homophilyCard(run);
    supportCard(run);
  } else reachCard(run, cases, index);
  if (cases.length > 1) gainCard(cases);
  if (Object.keys(shown.paper).length) paperCard(shown);
}

function keyFigure(value, text, scope, { tip = null, go = null } = {}) {
  const big = element("b"),
    small = element("span"),
    about = element("small", { class: "scope" });
  big.textContent = value;
  small.append(...glossed(text));
  about.textContent = scope;
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
function reachFigure(proved, open, total, text, scope, { tip, go }) {
  if (!open) return keyFigure(percent(proved / total), text, scope, { tip, go });
  const low = (100 * proved) / total,
    high = (100 * (proved + open)) / total;
  return keyFigure(`${low.toFixed(1)}–${high.toFixed(1)}\u00a0%`, text, scope, {
    tip: [...tip, `${count(open)} more are undecided: proved to not excluded`],
    go,
  });
}

function drawFigures(run) {
  // A node without an answer counts neither as reachable nor as unreachable.
  const sums = tally(run),
    wrong = sums.reachable + sums.unreachable,
    scope = runScope(run),
    best = bestHere(run);
  const errors = `${caseScope(run)}${errorsOf(run.count - sums.right)}`;
  byId("key-figures").replaceChildren(
    keyFigure(count(run.count), `${selected(run)}, ${run.classCount} classes`, scope, { go: {} }),
    keyFigure(percent(sums.right / run.count), "frozen model right", scope, {
      tip: [`${count(sums.right)} of ${count(run.count)} ${selected(run)}`],
      go: { status: "right" },
    }),
    reachFigure(sums.reach, sums.open, sums.solved + sums.open, "true class reachable", scope, {
      tip: [
        "Some reweighting of the frozen messages makes the true class win",
        `${count(sums.reach)} of ${counted(run, sums.solved + sums.open)}`,
        ...(run.chance && run.chance.everyone !== null
          ? [`chance: ${run.chance.everyone.toFixed(1)} % of classes neither true nor predicted`]
          : []),
      ],
      go: { status: "can" },
    }),
    reachFigure(
      sums.reachable,
      sums.undecided,
      wrong + sums.undecided,
      "of errors reachable",
      errors,
      {
        tip: [
          `${count(sums.reachable)} of ${errorsOf(wrong + sums.undecided)} ` +
            "could be mended by reweighting alone",
        ],
        go: { status: "reachable" },
      },
    ),
    ...(run.chance
      ? [keyFigure(chanceShare(run.chance), "by chance", errors, { tip: [run.chance.words] })]
      : []),
    keyFigure(
      figure(sums.support / sums.reach, 2),
      "terms in a witness, on average",
      `${caseScope(run)}${count(sums.reach)} reachable ${sums.reach === 1 ? run.noun : run.nouns}`,
    ),
    ...(best
      ? [
          keyFigure(
            `${ownAccuracy(run, run.repairs[best.j].key).toFixed(1)} %`,
            `right with the best repair, ${best.title}`,
            scope,
            { go: { repair: `${best.j} corrected` }, tip: [`${count(best.corrected)} corrected`] },
          ),
        ]
      : []),
  );
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
function accuracyCard(run, shown) {
  const own = ownSplit(run, shown) >= 0 || (run && shown.methods[0].splits.length === 1);
  const rows = shown.methods.map((method, j) => {
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
      ? "One row a method. The number is the mean over the splits; every split is a faint dot"
      : "One row a method",
    (width) => dotPlot(width, rows, `accuracy on ${shown.on} (%)`, each, [0, 100], ring),
    { scope: methodScope(shown) },
  );
}

// A stored number that the page's own model does not repeat, by more than rounding.
function changedFrom(stored, here) {
  return here !== null && Math.abs(stored - here) > 1e-6;
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
    "Difference of accuracies, one dot a case",
    (width) =>
      dotPlot(width, [...gains.values()], "points of accuracy over Frozen", "case", [-100, 100]),
    { scope: studyScope(cases) },
  );
}

function movesCard(run) {
  if (!run.repairs.length) return;
  const rows = run.repairs.map((_, j) => outcomesOf(run, j));
  chartCard(
    "What each repair moved",
    `Predictions that became right or wrong. A bar shows its ${run.nouns}`,
    (width) => movesPlot(width, rows, run.count),
    { scope: runScope(run) },
  );
}

// With several cases one dot each; with a single case one dot a class.
function reachCard(run, cases, index) {
  const reached = cases.filter((entry) => entry.reach.true_class_reach);
  if (run)
    chartCard(
      "Reach and accuracy, by class",
      `One dot a true class, its size the number of ${run.nouns}; the height above the dashed ` +
        "line is " +
        "evidence that the frozen model does not use",
      (width) => scatter(width, classDots(run), "frozen accuracy (%)", "true-class reach (%)"),
      { scope: runScope(run) },
    );
  if (reached.length > 1) {
    const dots = reached.map((entry) => caseDot(entry, entry === cases[index]));
    chartCard(
      "Reach and accuracy, all cases",
      "One dot a case; above the dashed line there is evidence that the frozen model does not use",
      (width) => scatter(width, dots, "frozen accuracy (%)", "true-class reach (%)"),
      { scope: studyScope(reached) },
    );
  }
}

function caseDot(entry, shown) {
  const x = momentsOf(entry.methods[0].values).mean,
    y = momentsOf(entry.reach.true_class_reach).mean;
  const text = caseName(entry);
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
            go: { label: String(c) },
            tip: [
              run.classes[c],
              counted(run, n),
              `frozen accuracy ${percent(right / n)}`,
              `true-class reach ${percent(reach / n)}` +
                (open ? ` proved, ${percent((reach + open) / n)} not excluded` : ""),
              "click to see them",
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
    { scope: methodScope(shown), table: true },
  );
}
