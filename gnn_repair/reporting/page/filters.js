// Which nodes the list shows: fields of the form, and what was picked in the overview's pictures.

// Key in the address and the form's field.
const FIELDS = [
  ["q", "search"],
  ["status", "filter-status"],
  ["label", "filter-label"],
  ["predicted", "filter-prediction"],
  ["repair", "filter-repair"],
  ["pair", "filter-pair"],
  ["from", "degree-from"],
  ["to", "degree-to"],
  ["order", "order"],
];
const FIRST_ORDER = "list";

// What only a picture can choose: how a range is called, and how wide a bin's edges are.
const PICKS = new Map([
  ["gamma", "γ"],
  ["homophily", "neighbours of its class"],
  ["support", "terms in the witness"],
]);

function fillFilters(run) {
  const classes = run.classes.map((name, c) => [c, name]);
  fill(
    byId("filter-status"),
    [
      ["", "any"],
      ["wrong", "wrong"],
      ["reachable", "wrong, reachable"],
      ["unreachable", "wrong, unreachable"],
      ...(run.tail ? [["undecided", "wrong, undecided"]] : []),
      ["beyond", "wrong, not shown reachable"],
      ["right", "right"],
      ["can", "true class can win"],
      ["cannot", "true class cannot win"],
      ...(run.tail ? [["open", "undecided"]] : []),
    ],
    "",
  );
  fill(byId("filter-label"), [["", "any"], ...classes], "");
  fill(byId("filter-prediction"), [["", "any"], ...classes], "");
  fill(
    byId("filter-repair"),
    [
      ["", "any"],
      ...run.repairs.flatMap((repair, j) => [
        [`${j} corrected`, `${repair.title} corrects`],
        [`${j} broken`, `${repair.title} breaks`],
        [`${j} missed`, `${repair.title} leaves wrong`],
        [`${j} wrong`, `${repair.title} is wrong`],
      ]),
    ],
    "",
  );
  byId("filter-repair").parentElement.hidden = !run.repairs.length;
  fill(byId("filter-pair"), [["", "any"], ...PAIRS], "");
  if (run.graph_starts) document.querySelector("#filters .range span").textContent = "Nodes";
  fillOrders(run);
}

function fillOrders(run) {
  fill(
    byId("order"),
    [
      [FIRST_ORDER, "wrong first, then γ"],
      ["changed", "changed first (A to B)"],
      ["margin", "γ, low first"],
      ["margin-high", "γ, high first"],
      ["frozen", "frozen margin, low first"],
      ["frozen-high", "frozen margin, high first"],
      ["gain", "what γ adds to the frozen margin"],
      ...run.repairs.map((repair, j) => [`gain ${j}`, `gain by ${repair.title}`]),
      ["degree", "degree, high first"],
      ["degree-low", "degree, low first"],
      ["node", "number"],
    ],
    FIRST_ORDER,
  );
}

function readFilters(picks) {
  const value = (id) => byId(id).value;
  const number = (id, otherwise) => (value(id) === "" ? otherwise : Number(value(id)));
  const [repair, outcome] = value("filter-repair").split(" ");
  return {
    text: value("search").trim().toLowerCase(),
    status: value("filter-status"),
    label: number("filter-label", -1),
    prediction: number("filter-prediction", -1),
    repair: outcome ? Number(repair) : -1,
    outcome,
    pair: value("filter-pair"),
    from: number("degree-from", 0),
    to: number("degree-to", Infinity),
    order: value("order"),
    picks,
  };
}

// [lo, hi) of γ, where zero is the threshold of a win.
function inMargins(value, [low, high]) {
  return (
    (low === 0 ? value > REACHABLE : value >= low) &&
    (high === 0 ? value <= REACHABLE : value < high)
  );
}
// (lo, hi] of a share in float32.
function inShares(value, [low, high]) {
  return value > low + 1e-6 && value <= high + 1e-6;
}

function hasStatus(run, i, wanted) {
  const status = statusOf(run, i);
  if (wanted === "wrong") return status !== "right";
  if (wanted === "beyond") return status !== "right" && status !== "reachable";
  if (wanted === "can") return isReachable(run, i);
  if (wanted === "cannot") return run.margins[i] <= REACHABLE;
  if (wanted === "open") return tailVerdict(run, i) === "undecided";
  return status === wanted;
}

function hasOutcome(run, j, wanted, i) {
  const outcome = outcomeOf(run, run.repairs[j], i);
  return wanted === "wrong" ? outcome === "missed" || outcome === "broken" : outcome === wanted;
}

function picked(run, i, picks) {
  const { gamma, homophily, support } = picks;
  if (gamma && !inMargins(run.margins[i], gamma)) return false;
  if (homophily && !inShares(run.homophily[i], homophily)) return false;
  if (!support) return true;
  return isReachable(run, i) && run.support[i] >= support[0] && run.support[i] <= support[1];
}

function passes(run, i, filters) {
  const node = run.nodes[i];
  if (filters.status && !hasStatus(run, i, filters.status)) return false;
  if (filters.label >= 0 && run.labels[node] !== filters.label) return false;
  if (filters.prediction >= 0 && run.predictions[node] !== filters.prediction) return false;
  if (run.degree[i] < filters.from || run.degree[i] > filters.to) return false;
  if (filters.repair >= 0 && !hasOutcome(run, filters.repair, filters.outcome, i)) return false;
  if (filters.pair && !run.paired(i, filters.pair)) return false;
  if (!picked(run, i, filters.picks)) return false;
  return !filters.text || isNamed(run, node, filters.text);
}

function isNamed(run, node, text) {
  if (/^\d+$/.test(text))
    return (
      String(node).startsWith(text) ||
      Boolean(run.names && run.names[node].toLowerCase().includes(text))
    );
  return [
    nodeName(run, node),
    className(run, run.labels[node]),
    className(run, run.predictions[node]),
  ].some((name) => name.toLowerCase().includes(text));
}

// The node a search means: the one with this very number or name, else the first that is left.
function meantBy(run, text, shown) {
  const exact = shown.find(
    (i) => String(run.nodes[i]) === text || nodeName(run, run.nodes[i]).toLowerCase() === text,
  );
  return exact ?? shown[0];
}

// What the list is sorted by, low first; null: the payload's order, errors first by γ.
function orderKey(run, order) {
  const [kind, j] = order.split(" ");
  const values = {
    node: (i) => run.nodes[i],
    degree: (i) => -run.degree[i],
    "degree-low": (i) => run.degree[i],
    margin: (i) => run.margins[i],
    "margin-high": (i) => -run.margins[i],
    frozen: (i) => frozenMargins(run)[i],
    "frozen-high": (i) => -frozenMargins(run)[i],
    changed: (i) => run.changed(i),
    gain: (i) =>
      j === undefined
        ? frozenMargins(run)[i] - run.margins[i]
        : frozenMargins(run)[i] - repairMargin(run, Number(j), i),
  };
  return Object.hasOwn(values, kind) ? values[kind] : null;
}

function selectNodes(run, filters) {
  const chosen = [];
  for (let i = 0; i < run.explored; i++) if (passes(run, i, filters)) chosen.push(i);
  const key = orderKey(run, filters.order);
  if (!key) return chosen;
  const keys = new Map(chosen.map((i) => [i, key(i)]));
  // A node without an answer comes last; equal ones stay as they were.
  const last = (value) => (Number.isNaN(value) ? Infinity : value);
  return chosen.sort((a, b) => last(keys.get(a)) - last(keys.get(b)) || a - b);
}

function pickWords(key, [from, to]) {
  const unit = key === "homophily" ? (v) => percent(v, 0) : (v) => tickWords(v);
  const name = PICKS.get(key);
  if (key === "homophily" && to <= 0) return `no ${name}`;
  if (from === to) return `${unit(from)} ${name}`;
  if (!Number.isFinite(from)) return `${name} below ${unit(to)}`;
  return Number.isFinite(to)
    ? `${name} ${unit(from)} to ${unit(to)}`
    : `${name} from ${unit(from)}`;
}
