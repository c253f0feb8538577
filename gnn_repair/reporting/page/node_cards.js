// Cards of the overview that count the nodes of one run.

const STATUS_SERIES = [
  { colour: "--right", text: "frozen right", go: { status: "right" } },
  { colour: "--shifted", text: "wrong, reachable", go: { status: "reachable" } },
  { colour: "--rival", text: "wrong, unreachable", go: { status: "unreachable" } },
];
function seriesOf(run) {
  const open = { colour: "--other", text: "wrong, undecided", go: { status: "undecided" } };
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
  const bins = marginBins(low, high, step);
  const first = -bins.findIndex((bin) => bin.range[0] === 0),
    [axis, zero] = run.tail ? ["margin (logits)", "margin 0"] : ["γ (logits)", "γ = 0"];
  for (let i = 0; i < run.count; i++) {
    if (Number.isNaN(run.margins[i])) continue;
    bins.find((bin) => inMargins(run.margins[i], bin.range)).parts[statusPart(run, i)]++;
  }
  chartCard(
    run.tail ? "Best margin found of the true class" : "Best margin γ of the true class",
    run.tail
      ? "The largest worst-rival margin that was found; right of the threshold the true class " +
          `can win, left of it that is excluded by bounds. Undecided ${run.nouns} are left out`
      : "The largest worst-rival margin that any admissible reweighting reaches, in " +
          "logits; right of " +
          "the threshold the true class can win",
    (width) =>
      stackedColumns(width, bins, STATUS_SERIES, axis, false, [{ place: -first, text: zero }]),
    { scope: runScope(run) },
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

function degreeCard(run) {
  const edges = [0, 1, 2, 3, 5, 9, 17, 33, 65, 129, 257, 513, 1025, Infinity];
  const bins = edges.slice(0, -1).map((low, j) => {
    const high = edges[j + 1] - 1;
    const label = high === Infinity ? `${low}+` : low === high ? String(low) : `${low}–${high}`;
    const go = { from: String(low), to: high === Infinity ? "" : String(high) };
    return {
      label,
      tip: `${run.graph_starts ? "nodes:" : "degree"} ${label}`,
      parts: seriesOf(run).map(() => 0),
      go,
    };
  });
  for (let i = 0; i < run.count; i++) {
    if (statusOf(run, i) === "unknown") continue;
    bins[edges.findIndex((edge) => run.degree[i] < edge) - 1].parts[statusPart(run, i)]++;
  }
  const used = bins.filter((bin) => bin.parts.some((n) => n));
  chartCard(
    run.graph_starts ? "Reach by number of nodes" : "Reach by degree",
    `Share of ${run.nouns}; their number stands above each column`,
    (width) =>
      stackedColumns(width, used, seriesOf(run), run.graph_starts ? "nodes" : "neighbours", true),
    { scope: runScope(run) },
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
      range: j === 0 ? [-Infinity, 0] : [(j - 1) / 5, j / 5],
      go: { homophily: j === 0 ? "~0" : `${(j - 1) / 5}~${j / 5}` },
    };
  });
  for (let i = 0; i < run.count; i++) {
    const h = run.homophily[i];
    if (!Number.isNaN(h) && statusOf(run, i) !== "unknown")
      bins.find((bin) => inShares(h, bin.range)).parts[statusPart(run, i)]++;
  }
  if (bins.some((bin) => bin.parts.some((n) => n))) {
    chartCard(
      "Reach by local homophily",
      `Share of ${run.nouns}, by how many of a ${run.noun}'s neighbours have its class`,
      (width) =>
        stackedColumns(width, bins, seriesOf(run), "neighbours of the same class (%)", true),
      { scope: runScope(run) },
    );
  }
}

function supportCard(run) {
  // How few terms suffice is known of linear programs only.
  const bound = run.tail ? Infinity : run.classCount + run.groupCount - 2;
  const what = run.tail
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
    { scope: runScope(run) },
  );
}
