// What is chosen in the node explorer: its selects, its what-if mixture, and both in the address.

function fillChoices(run, state) {
  fill(
    byId("view"),
    [
      ["margins", "margins over two rivals"],
      ["three", "three classes, equal angles"],
      ["spread", "principal directions (PCA)"],
    ],
    state.view,
  );
  fill(
    byId("colouring"),
    [
      ["label", "by class"],
      ["prediction", "by prediction"],
    ],
    state.colouring,
  );
  const binary = run.classCount === 2;
  byId("view").parentElement.hidden = binary;
  const title = byId("plane-panel").querySelector("h2");
  if (binary) title.textContent = "Evidence on a line";
  if (run.graph_starts)
    byId("neighbourhood-panel").querySelector("h2").textContent = "The graph's nodes";
  if (run.tail) {
    title.textContent = binary ? "Predictions on a line" : "Predictions in logit space";
    byId("terms-panel").querySelector("h2").textContent = "Terms, each alone";
    byId("weighting").parentElement.hidden = true;
  }
}

// The two rivals of the plane: chosen ones, else the node's own; never the same twice.
function drawnRivals(node, state) {
  const [first, second] = rivalsOf(node);
  const one = state.one ?? (state.two === first ? second : first);
  let two = state.two ?? (one === second ? first : second);
  if (two === one) two = rivalOrder(node).find((r) => r !== one) ?? one;
  return [one, two];
}

// Each select leaves out what the other one shows.
function fillRivals(node, state) {
  const { run } = node,
    [one, two] = drawnRivals(node, state);
  const options = (other) =>
    run.classes.map((name, c) => [c, name]).filter(([c]) => c !== node.label && c !== other);
  fill(byId("rival-one"), options(two), one);
  fill(byId("rival-two"), options(one), two);
  const needed = state.view !== "spread" && run.classCount > 2;
  byId("rival-one-label").hidden = !needed;
  byId("rival-two-label").hidden = !needed;
}

function planePicture(width, node, state, whatIf) {
  const { run } = node;
  if (run.classCount === 2) return drawNumberLine(width, node, whatIf, state.hidden, state);
  const view = viewOf(node, state.view, ...drawnRivals(node, state));
  const needed = state.view !== "spread";
  byId("rival-one-label").hidden = !needed;
  byId("rival-two-label").hidden = !needed;
  // Beside a long list of logits the plane may be as tall as the list (about 19 px a line).
  const beside = window.innerWidth > 1100 ? 19 * run.classCount + 25 * node.points.length + 30 : 0;
  const height = Math.round(Math.max(300, Math.min(620, Math.max(width * 0.66, beside))));
  const drawn = drawPolytope(width, height, node, view, whatIf, state.hidden, state);
  return { ...drawn, note: view.note };
}

function planeCaption(node, drawn) {
  const { run } = node;
  const some =
    node.count > MOST_VERTICES
      ? ` ${count(MOST_VERTICES)} of ${count(node.count)} terms drawn.`
      : "";
  const away = drawn.svg.querySelectorAll("[data-off]").length
    ? " What lies outside the picture is named at its edge."
    : "";
  let what =
    "Filled: all mixtures the frozen messages allow. Dots: terms, sized by α, " +
    "coloured by their source's class; a rim marks the oracle's.";
  if (run.classCount === 2)
    what =
      "Right of zero the true class wins. The bar holds all mixtures of the frozen messages; " +
      "dots are terms, each with all of its group's mass, at no particular height.";
  if (run.tail)
    what =
      "Every mark is a prediction of the whole model; the dots by its tail as certified. " +
      "Dots: all of a group's mass on one message, sized by α, coloured by its source's class; " +
      "a rim marks the oracle's. What other mixtures give is not drawn: behind a nonlinear " +
      "tail it is no polygon.";
  return `${drawn.note ? `${drawn.note} ` : ""}${what}${some}${away}`;
}

// The what-if mixture: where it started, and which shares were set since.
function startWhatIf(node, key) {
  const start = node.points.find((point) => point.key === key && point.coefficients),
    from = start || node.points[0];
  const lambda = Float64Array.from(from.coefficients);
  return {
    lambda,
    touched: from.key !== "frozen",
    from: from.key,
    moves: [],
    logits: logitsAt(node, lambda),
  };
}

function pushMass(node, whatIf, k, value) {
  const share = value / node.mass[node.group[k]],
    last = whatIf.moves[whatIf.moves.length - 1];
  moveMass(node, whatIf.lambda, k, value);
  whatIf.touched = true;
  // Of one slider's way only the end counts, unless it took all mass from the others on its way.
  if (last && last[0] === k && last[1] < 1) last[1] = share;
  else whatIf.moves.push([k, share]);
}

function whatIfText({ touched, from, moves }) {
  if (!touched) return "";
  return [from, ...moves.map(([k, share]) => `${k}:${Number(share.toFixed(4))}`)].join(",");
}

function readWhatIf(node, text) {
  if (!text || node.run.tail || !node.count) return startWhatIf(node, "frozen");
  const parts = text.split(","),
    moves = [];
  // The start's name is somebody's and may hold a comma; moves are at the end.
  while (parts.length > 1 && /^\d+:[\d.]+$/.test(parts[parts.length - 1]))
    moves.unshift(parts.pop().split(":").map(Number));
  const whatIf = startWhatIf(node, parts.join(","));
  for (const [k, share] of moves)
    if (k < node.count && share >= 0 && share <= 1)
      pushMass(node, whatIf, k, share * node.mass[node.group[k]]);
  whatIf.logits = logitsAt(node, whatIf.lambda);
  return whatIf;
}

function hideable(run) {
  return ["frozen", "oracle", ...run.repairs.map((repair) => repair.key)];
}

// The view's part of the address; what is as at first is left out.
function viewEntries(run, state) {
  const first = freshState(run),
    unless = (key) => (state[key] === first[key] ? "" : state[key]);
  const hidden = hideable(run).flatMap((key, j) => (state.hidden.has(key) ? [j] : [])),
    usual = hideable(run).flatMap((key, j) => (first.hidden.has(key) ? [j] : []));
  return [
    ["view", unless("view")],
    ["one", state.one],
    ["two", state.two],
    ["fit", unless("fit")],
    ["frame", state.edges ? state.edges.map((v) => Number(v.toPrecision(9))).join(",") : ""],
    ["weigh", unless("weighting")],
    ["colour", unless("colouring")],
    ["sort", state.sort && `${state.descending ? "down" : "up"} ${state.sort}`],
    ["a", unless("a")],
    ["b", unless("b")],
    ["hide", hidden.join() === usual.join() ? "" : hidden.join() || "none"],
  ];
}

// Left, right, bottom, top: numbers far enough apart to draw between them.
function isFrame(edges) {
  // Closer together their ticks would all read the same.
  const apart = (low, high) => high - low > 2e-5 * Math.max(Math.abs(low), Math.abs(high));
  return (
    edges.length === 4 &&
    edges.every((edge) => Math.abs(edge) < 1e40) &&
    apart(edges[0], edges[1]) &&
    apart(edges[2], edges[3])
  );
}

function readView(run, state, parts) {
  const one = (key, allowed, otherwise) =>
    allowed.includes(parts.get(key)) ? parts.get(key) : otherwise;
  const rival = (key) => {
    const c = parts.has(key) ? Number(parts.get(key)) : NaN;
    return Number.isInteger(c) && c >= 0 && c < run.classCount ? c : null;
  };
  const edges = (parts.get("frame") || "").split(",").map(Number);
  const [way, ...column] = (parts.get("sort") || "").split(" ");
  const first = freshState(run),
    sides = sidesOf(run).map(([text]) => text);
  Object.assign(state, {
    view: one("view", ["margins", "three", "spread"], "margins"),
    one: rival("one"),
    two: rival("two"),
    fit: one("fit", ["start", "all", "repairs"], "start"),
    edges: isFrame(edges) ? edges : null,
    weighting: parts.get("weigh") || "frozen",
    colouring: one("colour", ["label", "prediction"], "label"),
    sort: column.join(" "),
    descending: way !== "up",
    hidden: first.hidden,
    a: one("a", sides, first.a),
    b: one("b", sides, first.b),
  });
  const chosen = parts.get("hide");
  if (!chosen) return;
  const places = chosen === "none" ? [] : chosen.split(",").map(Number);
  state.hidden = new Set(places.flatMap((j) => hideable(run)[j] ?? []));
}
