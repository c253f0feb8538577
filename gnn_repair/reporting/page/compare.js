// Two predictions of one node side by side: methods, splits or models; what changed comes first.

const COMPARED_TERMS = 8;
const PAIRS = [
  ["changed", "prediction changes"],
  ["b", "only B is right"],
  ["a", "only A is right"],
  ["both", "both are right"],
  ["none", "both are wrong"],
];

// Runs of the page: its own, then those beside it, which share its graph and labels.
function openBeside(run, payload) {
  run.title = "this page's model";
  run.runs = [run];
  for (const other of payload.beside || []) {
    const shared = { ...other.run, classes: payload.run.classes, names: run.names };
    const opened = openRun({
      run: shared,
      arrays: { ...other.arrays, labels: payload.arrays.labels },
    });
    opened.title = other.title;
    run.runs.push(opened);
  }
}

// What can be compared: "0 frozen", "0 oracle", "1 frozen", …
function sidesOf(run) {
  return run.runs.flatMap((one, r) =>
    [
      ["frozen", "Frozen"],
      ["oracle", "Oracle"],
      ...one.repairs.map((repair) => [repair.key, repair.title]),
    ].map(([key, title]) => [
      `${r} ${key}`,
      run.runs.length > 1 ? `${one.title}: ${title}` : title,
    ]),
  );
}

// At first the frozen model and another run's, else the best repair, else the oracle.
function firstPair(run) {
  if (run.runs.length > 1) return ["0 frozen", "1 frozen"];
  const best = bestRepairOf(run);
  return ["0 frozen", best ? `0 ${run.repairs[best.j].key}` : "0 oracle"];
}

function sideOf(run, text) {
  const at = text.indexOf(" ");
  return { run: run.runs[Number(text.slice(0, at))], key: text.slice(at + 1), text };
}

// A side's answer about the page's node i; null where that run does not have it.
function answerOf(run, side, i) {
  const own = side.run,
    j = own === run ? i : own.position.get(run.nodes[i]);
  if (j === undefined) return null;
  const label = run.labels[run.nodes[i]];
  if (side.key === "frozen")
    return { margin: frozenMargins(own)[j], predicted: own.predictions[own.nodes[j]] };
  if (side.key === "oracle")
    return { margin: own.margins[j], predicted: isReachable(own, j) ? label : -1 };
  const place = own.repairs.findIndex((repair) => repair.key === side.key);
  return { margin: repairMargin(own, place, j), predicted: own.repairs[place].predictions[j] };
}

// Keeps the list's order and filter in step with what is compared.
function setPair(run, a, b) {
  const one = sideOf(run, a),
    two = sideOf(run, b),
    titles = new Map(sidesOf(run)),
    [left, right] = [titles.get(a), titles.get(b)];
  byId("filter-pair-name").textContent = `${left} (A), ${right} (B)`;
  run.changed = (i) => {
    const from = answerOf(run, one, i),
      to = answerOf(run, two, i);
    if (!from || !to) return NaN;
    const by = Math.abs(to.margin - from.margin);
    // Changed predictions first, each kind by how much the lead changes.
    return (from.predicted === to.predicted ? 1 : 0) - by / (1 + by);
  };
  run.paired = (i, wanted) => {
    const from = answerOf(run, one, i),
      to = answerOf(run, two, i);
    if (!from || !to) return false;
    const label = run.labels[run.nodes[i]];
    if (wanted === "changed") return from.predicted !== to.predicted;
    const [first, second] = [from.predicted === label, to.predicted === label];
    return wanted === (first ? (second ? "both" : "a") : second ? "b" : "none");
  };
}

// A side opened at a node: its own node with the named prediction among its points.
function openSide(run, text, i) {
  const side = sideOf(run, text),
    j = side.run === run ? i : side.run.position.get(run.nodes[i]);
  if (j === undefined) return { ...side, node: null, point: null };
  const node = openNode(side.run, j),
    point = node.points.find((entry) => entry.key === side.key) || null;
  return { ...side, node, point };
}

function compareSentences(run, names, a, b) {
  if (!a.point || !b.point) {
    const [who, side] = a.point ? [names[1], b] : [names[0], a];
    return [
      side.node
        ? `${who} has no answer for this ${run.noun}.`
        : `${who} does not show this ${run.noun}.`,
    ];
  }
  const c = a.node.label,
    label = className(run, c),
    said = (point) => className(run, point.predicted);
  const says = (point) => (point.predicted === c ? "right" : "wrong");
  const first =
    a.point.predicted === b.point.predicted
      ? `Both predict ${said(a.point)}, which is ${says(a.point)}.`
      : `The prediction changes from ${said(a.point)} (${says(a.point)}) ` +
        `to ${said(b.point)} (${says(b.point)}).`;
  const second =
    `The lead of ${label} over its worst rival goes from ${signed(a.point.margin, 2)} ` +
    `(${className(run, a.point.rival)}) to ${signed(b.point.margin, 2)} ` +
    `(${className(run, b.point.rival)}).`;
  return [first, second, ...runSentences(a, b)];
}

// What two runs know of one node: its evidence in each, and what it was for the other.
function runSentences(a, b) {
  if (a.run === b.run) return [];
  const [left, right] = [a, b].map(({ run: own, node }) => own.margins[node.i]);
  const told = [`γ goes from ${figure(left, 2)} to ${figure(right, 2)}.`];
  for (const { run: own, node } of [a, b])
    if (own.parts && own.node_parts[node.i] !== own.parts.length - 1)
      told.push(`In ${own.title} it belongs to ${own.parts[own.node_parts[node.i]]}.`);
  return told;
}

function classTable(run, a, b) {
  const left = centred(a.point.logits),
    right = centred(b.point.logits);
  // The true class and both predictions first, then what changed most.
  const order = left.map((_, c) => c),
    first = new Set([a.node.label, a.point.predicted, b.point.predicted]),
    change = (c) => Math.abs(right[c] - left[c]);
  order.sort((p, q) => first.has(q) - first.has(p) || change(q) - change(p));
  const rows = order.map((c) => [
    className(run, c),
    signed(left[c], 3),
    signed(right[c], 3),
    signed(right[c] - left[c], 3),
  ]);
  return plainTable(
    ["Logit (centred)", "A", "B", "Change"],
    rows,
    (c) => order[c] === a.node.label,
  );
}

// Terms are the same where source and group are: the weights of both, and what that moves.
function termChanges(a, b, rival) {
  const c = a.node.label,
    found = new Map();
  for (const [place, side] of [a, b].entries()) {
    const { node, point } = side;
    for (let k = 0; k < node.count; k++) {
      const key = `${sourceOf(node, k)} ${side.run.groups[node.group[k]]}`;
      const entry = found.get(key) || { node, k, weight: [0, 0], lead: [0, 0] };
      const lambda = point.coefficients[k];
      entry.weight[place] += lambda;
      entry.lead[place] += lambda * (contribution(node, k, c) - contribution(node, k, rival));
      found.set(key, entry);
    }
  }
  const change = (entry) => Math.abs(entry.lead[1] - entry.lead[0]);
  return [...found.values()].sort((p, q) => change(q) - change(p));
}

function termTable(run, a, b) {
  const shifts = [a, b].filter(({ point }) => !point.coefficients);
  if (a.run.head || b.run.head)
    return captioned("With a nonlinear head messages have no additive share in the logits.");
  if (shifts.length || !a.node.count || !b.node.count)
    return captioned(
      shifts.length
        ? `${shifts[0].point.title} shifts the logits and reweights no message.`
        : `The terms of this ${run.noun} are not in this file.`,
    );
  const rival = a.point.rival,
    entries = termChanges(a, b, rival);
  const row = (name, group) => {
    const sum = (pick) => group.reduce((total, entry) => total + pick(entry), 0);
    return [
      name,
      ...[0, 1].map((j) =>
        figure(
          sum((entry) => entry.weight[j]),
          4,
        ),
      ),
      signed(
        sum((entry) => entry.lead[1] - entry.lead[0]),
        3,
      ),
    ];
  };
  const title = ({ node, k }) => {
    const source = sourceOf(node, k),
      group = node.run.groupCount > 1 ? `, ${node.run.groups[node.group[k]]}` : "";
    return `${sourceName(run, source)}${source === node.id ? " (itself)" : ""}${group}`;
  };
  const listed = entries.slice(0, COMPARED_TERMS),
    rest = entries.slice(COMPARED_TERMS);
  const fixed = (side) => side.node.beta[a.node.label] - side.node.beta[rival],
    rows = listed.map((entry) => row(title(entry), [entry]));
  if (rest.length) {
    const plural = rest.length > 1 ? "s" : "";
    rows.push(row(`${count(rest.length)} other term${plural}`, rest));
  }
  if (a.run !== b.run) rows.push(["fixed part β", "", "", signed(fixed(b) - fixed(a), 3)]);
  const over = `Change of the lead over ${className(run, rival)}`;
  return plainTable(["Term", "Weight A", "Weight B", over], rows, () => false);
}

function captioned(text) {
  const made = element("p", { class: "caption" });
  made.textContent = text;
  return made;
}

function plainTable(heads, rows, isMarked) {
  const line = (tag, cells, marked = false) =>
    element(
      "tr",
      { class: marked ? "active" : null },
      ...cells.map((cell, j) => {
        const made = element(tag, { class: j ? "" : "text", scope: tag === "th" ? "col" : null });
        made.textContent = cell;
        if (!j) made.tip = [cell];
        return made;
      }),
    );
  return element(
    "table",
    {},
    element("thead", {}, line("th", heads)),
    element("tbody", {}, ...rows.map((cells, j) => line("td", cells, isMarked(j)))),
  );
}

// Both pictures in one frame, each with its own polytope and its own prediction.
function comparePictures(width, a, b) {
  const sides = [a, b],
    rivals = drawnRivals(a.node, { one: null, two: null });
  const draw = (side, edges) => {
    const { node } = side,
      still = { logits: node.frozen, touched: false };
    const hidden = new Set(node.points.map((point) => point.key).filter((key) => key !== side.key)),
      choice = { fit: "start", edges, quiet: true };
    return node.run.classCount === 2
      ? drawNumberLine(width, node, still, hidden, choice)
      : drawPolytope(
          width,
          Math.max(260, Math.round(width * 0.7)),
          node,
          viewOf(node, "margins", ...rivals),
          still,
          hidden,
          choice,
        );
  };
  const frames = sides.map((side) => draw(side, null).frame);
  const far = (key, pick) => pick(...frames.map((frame) => frame[key]));
  const edges = [
    far("left", Math.min),
    far("right", Math.max),
    far("bottom", Math.min),
    far("top", Math.max),
  ];
  return sides.map((side) => draw(side, edges).svg);
}

function drawCompare(run, i, state, width) {
  const sides = [state.a, state.b].map((text) => openSide(run, text, i)),
    [a, b] = sides,
    titles = new Map(sidesOf(run)),
    names = sides.map((side) => titles.get(side.text));
  fill(byId("compare-a"), sidesOf(run), state.a);
  fill(byId("compare-b"), sidesOf(run), state.b);
  const lines = compareSentences(run, names, a, b);
  const strong = element("p", { class: "verdict" });
  strong.textContent = lines[0];
  byId("compare-words").replaceChildren(strong, captioned(lines.slice(1).join(" ")));
  const both = a.point && b.point;
  byId("compare-tables").replaceChildren(
    ...(both ? [classTable(run, a, b), termTable(run, a, b)] : []),
  );
  const narrow = width < 560,
    each = Math.floor(narrow ? width : (width - 16) / 2);
  const pictures =
    both && each > 120
      ? comparePictures(each, a, b).map((svg, j) => {
          const title = element("figcaption");
          title.textContent = `${"AB"[j]}: ${names[j]}`;
          return element("figure", {}, title, svg);
        })
      : [];
  byId("compare-pictures").replaceChildren(...pictures);
}
