// The list of nodes: filters, order, and a window that draws only the rows in sight.

const ROW_HEIGHT = 34;

function openList(run, onChoose) {
  const list = { run, shown: [], chosen: -1 };
  const box = byId("list"),
    room = byId("list-room");
  fillFilters(run);

  list.refresh = () => {
    list.shown = selectNodes(run, readFilters());
    room.style.height = `${list.shown.length * ROW_HEIGHT}px`;
    const sampled = run.explored < run.count ? `, a sample of ${count(run.count)}` : "";
    byId("count").textContent =
      `${count(list.shown.length)} of ${count(run.explored)} nodes${sampled}`;
    list.draw();
  };
  list.draw = () => {
    const first = Math.max(0, Math.floor(box.scrollTop / ROW_HEIGHT) - 4);
    const last = Math.min(list.shown.length, first + Math.ceil(box.clientHeight / ROW_HEIGHT) + 8);
    const rows = [];
    for (let j = first; j < last; j++)
      rows.push(listRow(run, list.shown[j], j, list.shown[j] === list.chosen, onChoose));
    room.replaceChildren(...rows);
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
  box.addEventListener("scroll", list.draw, { passive: true });
  new ResizeObserver(list.draw).observe(box);
  byId("filters").addEventListener("input", () => {
    box.scrollTop = 0;
    list.refresh();
  });
  byId("filters").addEventListener("submit", (event) => {
    event.preventDefault();
    list.step(0);
  });
  list.refresh();
  return list;
}

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
      ["right", "right"],
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
      ]),
    ],
    "",
  );
  fill(
    byId("order"),
    [
      ["list", "wrong first, then γ"],
      ["node", "number"],
      ["degree", "degree, high first"],
      ["margin", "γ, low first"],
    ],
    "list",
  );
}

function readFilters() {
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
    from: number("degree-from", 0),
    to: number("degree-to", Infinity),
    order: value("order"),
  };
}

function selectNodes(run, filters) {
  const chosen = [];
  for (let i = 0; i < run.explored; i++) if (passes(run, i, filters)) chosen.push(i);
  // The payload lists errors first, by γ from high to low; the other orders are stable sorts of it.
  if (filters.order === "node") chosen.sort((a, b) => run.nodes[a] - run.nodes[b]);
  if (filters.order === "degree") chosen.sort((a, b) => run.degree[b] - run.degree[a]);
  if (filters.order === "margin") chosen.sort((a, b) => run.margins[a] - run.margins[b]);
  return chosen;
}

function passes(run, i, filters) {
  const status = statusOf(run, i),
    node = run.nodes[i];
  if (
    filters.status &&
    (filters.status === "wrong" ? status === "right" : status !== filters.status)
  )
    return false;
  if (filters.label >= 0 && run.labels[node] !== filters.label) return false;
  if (filters.prediction >= 0 && run.predictions[node] !== filters.prediction) return false;
  if (run.degree[i] < filters.from || run.degree[i] > filters.to) return false;
  if (filters.repair >= 0 && outcomeOf(run, run.repairs[filters.repair], i) !== filters.outcome)
    return false;
  if (!filters.text) return true;
  if (/^\d+$/.test(filters.text))
    return (
      String(node).startsWith(filters.text) ||
      Boolean(run.names && run.names[node].toLowerCase().includes(filters.text))
    );
  return (
    nodeName(run, node).toLowerCase().includes(filters.text) ||
    className(run, run.labels[node]).toLowerCase().includes(filters.text) ||
    className(run, run.predictions[node]).toLowerCase().includes(filters.text)
  );
}

function listRow(run, i, at, chosen, onChoose) {
  const node = run.nodes[i],
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
      "aria-selected": String(chosen),
      "data-node": node,
      style: `top:${at * ROW_HEIGHT}px`,
      onclick: () => onChoose(i),
      tip: [
        `Node ${nodeName(run, node)}: ${meaning}`,
        `true class ${label}, predicted ${says}`,
        (run.tail ? "best margin found " : "γ ") +
          `${figure((run.tail ? run.tail_margin : run.margins)[i], 3)}, degree ${run.degree[i]}`,
      ],
    },
    part(`mark ${status}`, sign),
    part("who", nodeName(run, node)),
    part("what", status === "right" ? brief : `says ${briefly}, is ${brief}`),
    part("much", signed(run.margins[i], 2)),
  );
}
