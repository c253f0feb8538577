// Cards of the overview that count the nodes of one run.

const STATUS_SERIES = [
  { colour: "--right", text: "frozen right" },
  { colour: "--shifted", text: "wrong, reachable" },
  { colour: "--rival", text: "wrong, unreachable" },
];
function seriesOf(run) {
  const open = { colour: "--other", text: "wrong, undecided" };
  return run.tail ? [...STATUS_SERIES, open] : STATUS_SERIES;
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
  const first = Math.floor(low / step),
    bins = [];
  for (let b = first; b * step < high || !bins.length; b++)
    bins.push({
      label: tickWords(b * step),
      tip: `γ from ${tickWords(b * step)} to ${tickWords((b + 1) * step)}`,
      parts: [0, 0, 0],
    });
  bins[0].tip = `γ below ${tickWords((first + 1) * step)}`;
  bins[bins.length - 1].tip = `γ above ${bins[bins.length - 1].label}`;
  for (let i = 0; i < run.count; i++) {
    const margin = run.margins[i];
    if (Number.isNaN(margin)) continue;
    const b =
      margin > REACHABLE
        ? Math.max(-first, Math.floor(margin / step) - first)
        : Math.floor(Math.min(margin, -1e-12) / step) - first;
    bins[Math.min(bins.length - 1, Math.max(0, b))].parts[statusPart(run, i)]++;
  }
  chartCard(
    run.tail ? "Best margin found of the true class" : "Best margin γ of the true class",
    run.tail
      ? "The largest worst-rival margin that was found; right of the threshold the true class " +
          "can win, left of it that is excluded by bounds. Undecided nodes are left out"
      : "The largest worst-rival margin that any admissible reweighting reaches, in " +
          "logits; right of " +
          "the threshold the true class can win",
    (width) =>
      stackedColumns(width, bins, STATUS_SERIES, "γ (logits)", false, [
        { place: -first, text: "γ = 0" },
      ]),
  );
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
  chartCard(
    "Reach by degree",
    "Share of nodes; the number of nodes stands above each column",
    (width) => stackedColumns(width, used, seriesOf(run), "neighbours", true),
  );
}

function homophilyCard(run) {
  const bins = Array.from({ length: 6 }, (_, j) => {
    const label = j === 0 ? "0" : `${20 * (j - 1) || ">0"}–${20 * j}`;
    return {
      label,
      tip:
        j === 0 ? "no neighbour shares the class" : `${label} % of the neighbours share the class`,
      parts: seriesOf(run).map(() => 0),
    };
  });
  for (let i = 0; i < run.count; i++) {
    const h = run.homophily[i];
    if (!Number.isNaN(h) && statusOf(run, i) !== "unknown")
      bins[h === 0 ? 0 : Math.min(5, 1 + Math.floor(h * 5 - 1e-9))].parts[statusPart(run, i)]++;
  }
  if (bins.some((bin) => bin.parts.some((n) => n))) {
    chartCard(
      "Reach by local homophily",
      "Share of nodes, by how many of a node's neighbours have its class",
      (width) =>
        stackedColumns(width, bins, seriesOf(run), "neighbours of the same class (%)", true),
    );
  }
}

function supportCard(run) {
  // How few terms suffice is known of linear programs only.
  const bound = run.tail ? Infinity : run.classCount + run.groupCount - 2;
  const what = run.tail
    ? "mixture that lets the true class win, of nodes where one was found"
    : `best mixture of reachable nodes; no witness needs more than ${bound} here`;
  let most = 1;
  for (let i = 0; i < run.count; i++)
    if (isReachable(run, i)) most = Math.max(most, run.support[i]);
  const bins = Array.from({ length: Math.min(bound, most + 1) }, (_, j) => ({
    label: String(j + 1),
    tip: `${j + 1} active term${j ? "s" : ""}`,
    parts: [0, 0],
  }));
  for (let i = 0; i < run.count; i++) {
    if (isReachable(run, i) && run.support[i])
      bins[run.support[i] - 1].parts[isRight(run, i) ? 0 : 1]++;
  }
  chartCard("Size of the witness", `Active terms in the ${what}`, (width) =>
    stackedColumns(width, bins, STATUS_SERIES.slice(0, 2), "active terms", false),
  );
}
