// The list of nodes: a listbox whose window draws only the rows in sight.

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
