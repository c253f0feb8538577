// The list of nodes: which of them are shown, in what order, and the rows in sight.

const ROW_HEIGHT = 34;

// `onChoose(i)` shows a node; `onFilter()` is told when another set of nodes is listed.
function openList(run, onChoose, onFilter) {
  const list = { run, shown: [], chosen: -1, picks: {} };
  const box = byId("list"),
    room = byId("list-room");
  fillFilters(run);

  list.refresh = () => {
    list.shown = selectNodes(run, readFilters(list.picks));
    room.style.height = `${list.shown.length * ROW_HEIGHT}px`;
    const sampled = run.explored < run.count ? `, a sample of ${count(run.count)}` : "";
    byId("count").textContent =
      `${count(list.shown.length)} of ${counted(run, run.explored)}${sampled}`;
    drawPicks(list);
    list.draw();
  };
  list.draw = () => {
    const first = Math.max(0, Math.floor(box.scrollTop / ROW_HEIGHT) - 4);
    const last = Math.min(list.shown.length, first + Math.ceil(box.clientHeight / ROW_HEIGHT) + 8);
    const rows = [];
    for (let j = first; j < last; j++) rows.push(listRow(list, j, onChoose));
    room.replaceChildren(...rows);
    const at = list.shown.indexOf(list.chosen);
    if (at >= first && at < last) box.setAttribute("aria-activedescendant", `option-${at}`);
    else box.removeAttribute("aria-activedescendant");
  };
  list.choose = (i) => {
    list.chosen = i;
    const at = list.shown.indexOf(i) * ROW_HEIGHT;
    if (at >= 0 && (at < box.scrollTop || at + ROW_HEIGHT > box.scrollTop + box.clientHeight))
      box.scrollTop = at - box.clientHeight / 2;
    list.draw();
  };
  list.step = (by) => {
    if (!list.shown.length) return;
    const at = list.shown.indexOf(list.chosen);
    onChoose(list.shown[at < 0 ? 0 : Math.min(list.shown.length - 1, Math.max(0, at + by))]);
  };
  // All filters at once, as [key, text] of the address; those not named are taken away.
  list.set = (parts) => {
    for (const [key, id] of FIELDS) {
      const field = byId(id),
        asked = parts.get(key) ?? (key === "order" ? FIRST_ORDER : "");
      field.value = field.type === "number" && !/^\d{1,15}$/.test(asked) ? "" : asked;
      if (field.selectedIndex === -1) field.value = key === "order" ? FIRST_ORDER : "";
    }
    list.picks = {};
    for (const key of PICKS.keys()) {
      const range = parts.has(key) ? rangeOf(parts.get(key)) : null;
      if (range) list.picks[key] = range;
    }
    box.scrollTop = 0;
    list.refresh();
  };
  list.entries = () => [
    ...FIELDS.map(([key, id]) => [
      key,
      key === "order" && byId(id).value === FIRST_ORDER ? "" : byId(id).value,
    ]),
    ...Object.entries(list.picks).map(([key, range]) => [key, rangeText(range)]),
  ];
  list.filtered = () => list.entries().some(([key, value]) => key !== "order" && value !== "");
  list.changed = () => {
    box.scrollTop = 0;
    list.refresh();
    onFilter();
    announce(byId("count").textContent);
  };
  box.addEventListener("scroll", list.draw, { passive: true });
  new ResizeObserver(list.draw).observe(box);
  box.addEventListener("keydown", (event) => {
    const page = Math.max(1, Math.floor(box.clientHeight / ROW_HEIGHT) - 1),
      by = { Home: -Infinity, End: Infinity, PageUp: -page, PageDown: page }[event.key];
    if (by === undefined) return;
    event.preventDefault();
    list.step(by);
  });
  byId("filters").addEventListener("input", list.changed);
  byId("filters").addEventListener("submit", (event) => {
    event.preventDefault();
    const meant = meantBy(run, byId("search").value.trim().toLowerCase(), list.shown);
    if (meant !== undefined) onChoose(meant);
  });
  byId("more-filters").addEventListener("click", (event) => {
    const open = byId("filters").classList.toggle("open");
    event.target.setAttribute("aria-expanded", String(open));
  });
  byId("clear").addEventListener("click", () => {
    const order = byId("order").value;
    list.set(new Map([["order", order]]));
    list.changed();
  });
  list.refresh();
  return list;
}

// What was picked in a picture, each with a button that takes it away.
function drawPicks(list) {
  const made = Object.entries(list.picks).map(([key, range]) => {
    const button = element("button", {
      type: "button",
      class: "pick",
      "data-pick": key,
      tip: ["Take this filter away"],
      onclick: () => {
        delete list.picks[key];
        list.changed();
      },
    });
    button.textContent = `${pickWords(key, range)} ✕`;
    return button;
  });
  byId("picks").replaceChildren(...made);
  byId("clear").hidden = !list.filtered();
}

function listRow(list, at, onChoose) {
  const { run } = list,
    i = list.shown[at],
    node = run.nodes[i],
    status = statusOf(run, i),
    [sign, meaning] = STATUS_WORDS[status];
  const part = (kind, text) => {
    const made = element("span", { class: kind });
    made.textContent = text;
    return made;
  };
  const label = className(run, run.labels[node]),
    says = className(run, run.predictions[node]);
  const brief = run.shortClasses[run.labels[node]],
    briefly = run.shortClasses[run.predictions[node]];
  return element(
    "div",
    {
      class: "row",
      role: "option",
      id: `option-${at}`,
      "aria-selected": String(i === list.chosen),
      "aria-posinset": at + 1,
      "aria-setsize": list.shown.length,
      "data-node": node,
      style: `top:${at * ROW_HEIGHT}px`,
      onclick: () => onChoose(i),
      tip: [
        `${titled(run, node)}: ${meaning}`,
        `is ${label}, predicted ${says}`,
        (run.head ? "best margin found " : "γ ") +
          `${figure((run.head ? run.head_margin : run.margins)[i], 3)}, degree ${run.degree[i]}`,
      ],
    },
    part(`mark ${status}`, sign),
    part("who", nodeName(run, node)),
    // Two parts, so that a long name never hides the true class.
    status === "right"
      ? part("what", brief)
      : element(
          "span",
          { class: "what two" },
          part("says", `says ${briefly},`),
          part("is", `is ${brief}`),
        ),
    part("much", signed(run.margins[i], 2)),
  );
}

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
      ...(run.head ? [["undecided", "wrong, undecided"]] : []),
      ["beyond", "wrong, not shown reachable"],
      ["right", "right"],
      ["can", "true class can win"],
      ["cannot", "true class cannot win"],
      ...(run.head ? [["open", "undecided"]] : []),
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
  if (wanted === "open") return headVerdict(run, i) === "undecided";
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
