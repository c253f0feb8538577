// The terms of a node as a table with what-if sliders.

const FIRST_ROWS = 25;
// A hub has thousands of terms, and a table of all their sliders would take seconds to draw.
const MORE_ROWS = 400;

// Columns of the table: {key, title, value(k), text(k), kind, rival}; keys of repairs begin with λ.
function termColumns(node, weights) {
  const { run } = node,
    columns = [];
  const add = (key, title, value, text, kind = "", rival = -1) =>
    columns.push({ key, title, value, text, kind, rival });
  const source = (k) => sourceOf(node, k);
  add(
    "source",
    "Source",
    source,
    (k) =>
      source(k) === node.id ? `${sourceName(run, source(k))} (itself)` : sourceName(run, source(k)),
    "text",
  );
  if (run.groupCount > 1)
    add(
      "group",
      "Group",
      (k) => node.group[k],
      (k) => run.groups[node.group[k]],
      "text",
    );
  // Nodes of a classified graph have no class of their own.
  if (!run.graph_starts)
    add(
      "label",
      "Class",
      (k) => run.labels[source(k)],
      (k) => (isForeign(run, source(k)) ? "–" : className(run, run.labels[source(k)])),
      "text",
    );
  add(
    "alpha",
    "α frozen",
    (k) => node.alpha[k],
    (k) => figure(node.alpha[k], 4),
    "weight",
  );
  for (const point of node.points) {
    if (!point.coefficients || point.key === "frozen") continue;
    const lambda = point.coefficients;
    add(
      `λ ${point.key}`,
      `λ ${point.title.toLowerCase()}`,
      (k) => lambda[k],
      (k) => (lambda[k] > ACTIVE ? figure(lambda[k], 4) : "·"),
      "weight",
    );
  }
  const c = node.label;
  if (run.head && node.nearest)
    add(
      "λ nearest",
      "λ smallest change",
      (k) => node.nearest[k],
      (k) => (node.nearest[k] > ACTIVE ? figure(node.nearest[k], 4) : "·"),
      "weight",
    );
  if (run.head)
    add(
      "alone",
      "alone it predicts",
      (k) => argmax(vertexLogits(node, k)),
      (k) => className(run, argmax(vertexLogits(node, k))),
      "text",
    );
  for (const r of rivalOrder(node)) {
    const value = (k) => {
      if (!run.head) return weights(k) * (contribution(node, k, c) - contribution(node, k, r));
      const logits = vertexLogits(node, k);
      return logits[c] - logits[r];
    };
    add(`over ${r}`, `over ${className(run, r)}`, value, (k) => signed(value(k), 3), "margin", r);
  }
  return columns;
}

function rivalOrder(node) {
  const first = rivalsOf(node),
    rest = Array.from(node.frozen.keys()).filter((r) => r !== node.label && !first.includes(r));
  return [...new Set([...first, ...rest.sort((a, b) => node.frozen[b] - node.frozen[a])])];
}

// What the margin columns are weighed with.
function weightingsOf(node) {
  const named = node.points
    .filter((point) => point.coefficients)
    .map((point) => [
      point.key,
      point.key === "frozen" ? "frozen α" : `λ ${point.title.toLowerCase()}`,
    ]);
  return [...named, ["what_if", "what-if λ"], ["unit", "one unit of coefficient"]];
}

function weightsFor(node, key, whatIf) {
  if (key === "unit") return () => 1;
  if (key === "what_if") return (k) => whatIf.lambda[k];
  const point = node.points.find((entry) => entry.key === key) || node.points[0];
  return (k) => point.coefficients[k];
}

function drawTerms(node, state, whatIf, onMove) {
  const columns = termColumns(node, (k) => weightsFor(node, state.weighting, whatIf)(k));
  const sorted =
    columns.find((column) => column.key === state.sort) ||
    columns.find((column) => column.key === "alpha");
  const order = Array.from({ length: node.count }, (_, k) => k);
  const heavy = (k) => (node.witness[k] > ACTIVE ? 1 : 0);
  const sign = state.descending ? -1 : 1,
    values = Float64Array.from(order, sorted.value),
    ahead = Uint8Array.from(order, state.sort ? () => 0 : heavy);
  order.sort((a, b) => ahead[b] - ahead[a] || sign * (values[a] - values[b]));
  const shown = order.slice(0, state.rows);
  const first = columns.findIndex((column) => column.kind === "margin"),
    table = element("table", { "data-wide": first + (node.run.head ? 0 : 1) });
  const body = element("tbody"),
    sliders = new Map(),
    live = [];
  for (const k of shown) body.append(termRow(node, k, columns, whatIf, sliders, live, onMove));
  body.append(...summaryRows(node, columns, order.slice(shown.length), live));
  table.append(termHead(columns, state, sorted), body);
  byId("terms").replaceChildren(table);
  moreLine(node, shown.length, state);
  return () => {
    for (const [k, { input, output }] of sliders) {
      const share = whatIf.lambda[k] / node.mass[node.group[k]];
      if (document.activeElement !== input) input.value = share;
      output.textContent = percent(share);
    }
    if (state.weighting === "what_if") for (const refresh of live) refresh();
  };
}

function termHead(columns, state, sorted) {
  const slide = element("th", { class: "text slide" });
  slide.textContent = "What if: share of mass";
  const row = element("tr", {}, ...(state.fixed ? [] : [slide]));
  for (const column of columns) {
    const button = element("button", { type: "button", onclick: () => state.sortBy(column) });
    if (column.kind === "weight") button.append(...glossed(column.title));
    else button.textContent = column.title;
    row.append(
      element(
        "th",
        {
          scope: "col",
          class: column.kind === "text" ? "text" : "",
          "data-column": column.key,
          "aria-sort":
            state.sort && column === sorted
              ? state.descending
                ? "descending"
                : "ascending"
              : null,
          tip:
            column.kind === "margin"
              ? [
                  state.fixed
                    ? `The lead of the true class ${column.title} with all of the ` +
                      "group's mass on this message"
                    : `What the term adds to the lead of the true class ${column.title}`,
                ]
              : null,
        },
        button,
      ),
    );
  }
  return element("thead", {}, row);
}

function termRow(node, k, columns, whatIf, sliders, live, onMove) {
  const group = node.group[k],
    [low, high] = node.bounds[group],
    share = whatIf.lambda[k] / node.mass[group];
  const input = element("input", {
    type: "range",
    min: 0,
    max: 1,
    step: 0.001,
    "data-term": k,
    disabled: high - low === 1 ? "" : null,
    "aria-label": `Share of mass on ${senderWords(node, sourceOf(node, k))}`,
    oninput: () => onMove(k, Number(input.value) * node.mass[group], false),
    onchange: () => onMove(k, Number(input.value) * node.mass[group], true),
  });
  input.value = share;
  // Moving one slider moves others: what is announced is the mixture, once.
  const output = element("output", { "aria-live": "off" });
  output.textContent = percent(share);
  if (!node.run.head) sliders.set(k, { input, output });
  const row = element(
    "tr",
    {
      class: node.witness[k] > ACTIVE ? "active" : null,
      "data-term": k,
      tip: () => termLines(node, k),
    },
    ...(node.run.head ? [] : [element("td", { class: "slide" }, input, " ", output)]),
  );
  for (const column of columns) {
    const cell = element("td");
    const write = () => {
      cell.textContent = column.text(k);
      cell.className =
        column.kind === "margin" ? (column.value(k) >= 0 ? "positive" : "negative") : column.kind;
      if (column.kind === "text") cell.tip = [column.text(k)];
    };
    write();
    if (column.key === "label" && !isForeign(node.run, sourceOf(node, k)))
      cell.prepend(
        element("span", {
          class: "swatch",
          style: `background:var(--${rolesOf(node)(column.value(k))})`,
        }),
      );
    if (column.kind === "margin") live.push(write);
    row.append(cell);
  }
  return row;
}

// What is not listed, the fixed part and the total, so that every column adds up on screen.
function summaryRows(node, columns, rest, live) {
  const { run } = node,
    c = node.label,
    every = Array.from({ length: node.count }, (_, k) => k);
  const added = (column, terms) => terms.reduce((sum, k) => sum + column.value(k), 0);
  const weighs = (column) => column.kind === "weight",
    leads = (column) => column.kind === "margin" && !run.head;
  const line = (kind, title, value, counts) => {
    const cells = run.head ? [] : [element("td", { class: "slide" })];
    columns.forEach((column, j) => {
      const cell = element("td", { class: j ? "" : "text", tip: j ? null : [title] });
      const write = () => {
        if (j === 0) cell.replaceChildren(...glossed(title));
        else if (counts(column)) cell.textContent = cellText(column, value(column));
      };
      write();
      if (column.kind === "margin") live.push(write);
      cells.push(cell);
    });
    return element("tr", { class: "total", "data-row": kind }, ...cells);
  };
  const fixed = (column) => node.beta[c] - node.beta[column.rival];
  const others = `${count(rest.length)} other term${rest.length > 1 ? "s" : ""}`;
  const both = (column) => weighs(column) || leads(column);
  return [
    ...(rest.length ? [line("other", others, (column) => added(column, rest), both)] : []),
    ...(run.head ? [] : [line("fixed", "fixed part β", fixed, leads)]),
    line(
      "total",
      run.head ? "sum" : "sum: mass, margin",
      (column) => added(column, every) + (leads(column) ? fixed(column) : 0),
      both,
    ),
  ];
}

function cellText(column, value) {
  return column.kind === "margin" ? signed(value, 3) : figure(value, 4);
}

function moreLine(node, shown, state) {
  const line = byId("terms-more");
  line.replaceChildren();
  if (shown >= node.count) return;
  const button = element("button", { type: "button", onclick: state.showMore });
  button.textContent =
    shown + MORE_ROWS < node.count
      ? `Show ${count(MORE_ROWS)} more`
      : `Show all ${count(node.count)} terms`;
  line.append(
    `${count(shown)} of ${count(node.count)} terms are listed, the others added up. `,
    button,
  );
}

function drawWhatIfLine(node, whatIf) {
  if (node.run.head) {
    byId("what-if-line").textContent =
      `The head (${node.run.head.words}) is not linear, so messages have no ` +
      "additive share in the logits. The margin columns show the prediction with all of a " +
      "group's mass on one message and the other groups as frozen. Other mixtures: " +
      "exposure.replay(λ) runs the model.";
    return;
  }
  const now = verdictOf(whatIf.logits, node.label),
    name = className(node.run, node.label),
    line = byId("what-if-line");
  const strong = element("b", { id: "what-if-margin", "data-value": now.margin });
  const sign = now.predicted === node.label ? "✓" : "✕";
  const predicted = className(node.run, now.predicted);
  strong.textContent = `${sign} ${predicted}, margin ${signed(now.margin, 4)}`;
  const masses = node.run.groups
    .map((group, g) => `${group} ${figure(massesOf(node, whatIf.lambda)[g], 4)}`)
    .filter((_, g) => node.mass[g] > 0);
  line.replaceChildren(
    "Move mass between terms of a group; the rest of the group makes room in proportion. " +
      "The mixture predicts ",
    strong,
    ` of ${name} (frozen ${signed(node.points[0].margin, 4)}). ` +
      `Group mass kept: ${masses.join(", ")}.`,
  );
}
