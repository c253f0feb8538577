// The node explorer: one node at a time, all its views in step, and what is chosen in them.

function freshState(run) {
  return {
    i: -1,
    view: "margins",
    one: null,
    two: null,
    fit: "start",
    edges: null,
    weighting: "frozen",
    colouring: "label",
    sort: "",
    descending: true,
    rows: FIRST_ROWS,
    hidden: hiddenAtFirst(run),
    fixed: Boolean(run.head),
    a: firstPair(run)[0],
    b: firstPair(run)[1],
  };
}

function openExplorer(run) {
  const state = freshState(run);
  const explorer = { state, run };
  let node = null,
    whatIf = null,
    drawn = null,
    movers = [];
  // Widths are noted when they change: asking for them while drawing would lay the page out again.
  const widths = {};

  setPair(run, state.a, state.b);
  const list = openList(
    run,
    (i) => explorer.show(i),
    () => explorer.agree(),
  );
  fillChoices(run, state);

  function note(push = false) {
    goToAddress([...explorer.entries()], push);
  }

  // While a mixture is set the plane stays in sight, and the table's margins are the mixture's.
  let planeSeen = true;
  function follow() {
    const floats = Boolean(whatIf && whatIf.touched && !planeSeen && !byId("nodes").hidden);
    const box = byId("plane");
    if (floats && !box.classList.contains("floating"))
      box.parentElement.style.minHeight = `${box.parentElement.offsetHeight}px`;
    if (!floats) box.parentElement.style.minHeight = "";
    box.classList.toggle("floating", floats);
  }
  new IntersectionObserver(
    (seen) => {
      planeSeen = seen[seen.length - 1].intersectionRatio > 0.25;
      follow();
    },
    { threshold: [0, 0.25, 0.5] },
  ).observe(byId("plane-panel"));

  function mixed() {
    if (state.weighting === "frozen") {
      state.weighting = "what_if";
      byId("weighting").value = "what_if";
    }
    follow();
    whatIf.logits = logitsAt(node, whatIf.lambda);
    for (const move of movers) if (move) move(whatIf.logits, whatIf.touched);
    drawWhatIfLine(node, whatIf);
  }

  function drawPlane() {
    const width = widths.plane;
    if (!(width > 120) || !node) return; // Too narrow for axes, while the page is laid out.
    drawn = planePicture(width, node, state, whatIf);
    byId("plane").replaceChildren(drawn.svg);
    movers[0] = drawn.move;
    byId("plane-caption").replaceChildren(...glossed(planeCaption(node, drawn)));
  }

  function drawSide() {
    const width = widths.logits;
    if (width && node) movers[1] = drawLogits(byId("logits"), width, node, whatIf, state.hidden);
  }

  function drawTable() {
    movers[2] = drawTerms(node, state, whatIf, (k, value, done) => {
      pushMass(node, whatIf, k, value);
      mixed();
      if (!done) return;
      note();
      announce(byId("what-if-margin").textContent);
    });
    drawWhatIfLine(node, whatIf);
  }

  function drawGraph() {
    const width = widths.neighbourhood;
    if (width && node)
      byId("neighbourhood").replaceChildren(
        run.graph_starts
          ? drawPooledGraph(width, node)
          : drawNeighbourhood(width, node, state.colouring, explorer.show),
      );
  }

  // Below the fold most of the time, and four pictures' work: drawn when it comes into sight.
  let comparing = false,
    stale = true;
  function drawPair() {
    stale = !comparing;
    if (comparing && widths["compare-pictures"] && node)
      drawCompare(run, state.i, state, widths["compare-pictures"]);
  }
  new IntersectionObserver(
    (seen) => {
      comparing = seen[seen.length - 1].isIntersecting;
      if (comparing && stale) drawPair();
    },
    { rootMargin: "200px" },
  ).observe(byId("compare-panel"));
  window.addEventListener("beforeprint", () => {
    comparing = true;
    if (stale) drawPair();
  });

  function fillButtons() {
    if (run.head) return;
    const made = node.points
      .filter((point) => point.coefficients && node.count)
      .map((point) => {
        const button = element("button", {
          type: "button",
          "data-set": point.key,
          onclick: () => {
            whatIf = startWhatIf(node, point.key);
            mixed();
            drawTable();
            note();
          },
        });
        button.textContent = point.title;
        return button;
      });
    byId("what-if-buttons").replaceChildren(...(made.length ? ["Start from ", ...made] : []));
  }

  function drawAll() {
    drawHead(node);
    drawCertificate(node);
    movers = [];
    movers[3] = drawReadout(node, state.hidden, (key, shown) => {
      state.hidden[shown ? "delete" : "add"](key);
      drawSide();
      drawPlane();
      note();
    });
    fillRivals(node, state);
    const weightings = weightingsOf(node);
    if (!weightings.some(([key]) => key === state.weighting)) state.weighting = "frozen";
    fill(byId("weighting"), weightings, state.weighting);
    fillButtons();
    drawSide();
    drawPlane();
    drawTable();
    drawPair();
    drawGraph();
    movers[3](whatIf.logits);
  }

  // Shows node i. `push`: a step that Back undoes; `parts`: what an address says about the view.
  explorer.show = (i, { push = true, parts = null } = {}) => {
    state.i = i;
    const waiting = run.ensure ? run.ensure(i) : null;
    if (!waiting) return explorer.draw(i, push, parts);
    byId("node").setAttribute("aria-busy", "true");
    waiting.then(
      () => state.i === i && explorer.draw(i, push, parts),
      (fault) => notice(fault.message),
    );
  };
  explorer.draw = (i, push, parts) => {
    byId("node").removeAttribute("aria-busy");
    const { hidden, view, colouring, a, b } = state,
      // A mixture ends with its node, and so does a table that followed it.
      weighting = state.weighting === "what_if" ? "frozen" : state.weighting;
    Object.assign(state, freshState(run), { i, hidden, view, weighting, colouring, a, b });
    if (parts) readView(run, state, parts);
    byId("view").value = state.view;
    byId("colouring").value = state.colouring;
    node = openNode(run, i);
    if (!list.shown.includes(i)) {
      list.set(new Map([["order", byId("order").value]]));
      notice(`Filters were taken away: they leave out ${run.noun} ${nodeName(run, node.id)}.`);
    }
    whatIf = readWhatIf(node, parts ? parts.get("what") : null);
    byId("nothing").hidden = true;
    byId("node").hidden = false;
    list.choose(i);
    drawAll();
    follow();
    note(push);
    announce(`${titled(run, node.id)}: ${headline(node)[0]}`);
    explorer.node = node;
  };
  // The shown node is one of the list, whatever the filters are; none where they leave none.
  explorer.agree = () => {
    notice("");
    if (!list.shown.length) {
      state.i = -1;
      byId("nothing").hidden = false;
      byId("node").hidden = true;
    } else if (list.shown.includes(state.i)) {
      list.choose(state.i);
      note();
    } else explorer.show(list.shown[0], { push: false });
  };
  // Filters may speak of A and B, so these are known before the list is.
  explorer.compare = (parts) => {
    readView(run, state, parts);
    setPair(run, state.a, state.b);
  };
  explorer.entries = () => [
    state.i >= 0 && node ? ["node", node.id] : ["nodes", true],
    ...list.entries(),
    ...viewEntries(run, state),
    ["what", whatIf ? whatIfText(whatIf) : ""],
  ];
  explorer.step = list.step;
  explorer.list = list;

  const redrawPlane = () => {
    drawPlane();
    note();
  };
  // The table is drawn anew; what was pressed in it keeps the focus.
  const refocus = (selector) => {
    const made = byId("terms-panel").querySelector(selector) || byId("terms");
    made.focus({ preventScroll: true });
  };
  state.sortBy = ({ key, kind }) => {
    const again = state.sort === key;
    // Names begin with A, numbers with the largest.
    Object.assign(state, {
      sort: key,
      descending: again ? !state.descending : kind !== "text",
    });
    drawTable();
    refocus(`th[data-column="${CSS.escape(key)}"] button`);
    note();
  };
  state.showMore = () => {
    state.rows += MORE_ROWS;
    drawTable();
    refocus("#terms-more button");
  };
  byId("view").addEventListener("change", (event) => {
    Object.assign(state, { view: event.target.value, edges: null });
    redrawPlane();
  });
  for (const [id, key] of [
    ["rival-one", "one"],
    ["rival-two", "two"],
  ])
    byId(id).addEventListener("change", (event) => {
      state[key] = Number(event.target.value);
      fillRivals(node, state);
      redrawPlane();
    });
  for (const side of ["a", "b"])
    byId(`compare-${side}`).addEventListener("change", (event) => {
      state[side] = event.target.value;
      setPair(run, state.a, state.b);
      list.refresh();
      drawPair();
      explorer.agree();
      if (byId("compare-words").firstChild) announce(byId("compare-words").firstChild.textContent);
    });
  byId("weighting").addEventListener("change", (event) => {
    state.weighting = event.target.value;
    drawTable();
    note();
  });
  byId("colouring").addEventListener("change", (event) => {
    state.colouring = event.target.value;
    drawGraph();
    note();
  });
  for (const [id, draw] of [
    ["plane", drawPlane],
    ["logits", drawSide],
    ["neighbourhood", drawGraph],
    ["compare-pictures", drawPair],
  ]) {
    widths[id] = byId(id).clientWidth;
    new ResizeObserver(() => {
      if (byId(id).clientWidth !== widths[id]) {
        widths[id] = byId(id).clientWidth;
        if (node) draw();
      }
    }).observe(byId(id));
  }
  navigatePlane(
    () => (drawn ? { frame: drawn.frame, home: drawn.home } : {}),
    (edges, fit = state.fit) => {
      if (edges && !isFrame(edges)) return; // As close, or as far away, as numbers go.
      Object.assign(state, { edges, fit });
      redrawPlane();
    },
  );
  linkTerms();
  return explorer;
}

// A term under the pointer lights up in the table, in the plane and in the neighbourhood.
function linkTerms() {
  let lit = [];
  const light = (event) => {
    const over = event.target.closest("[data-term]");
    for (const mark of lit) mark.classList.remove("lit");
    lit = over
      ? [...byId("plane").querySelectorAll(`circle[data-term="${over.dataset.term}"]`)]
      : [];
    for (const mark of lit) mark.classList.add("lit");
  };
  byId("node").addEventListener("pointerover", light);
  byId("node").addEventListener("focusin", light);
}

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
  if (run.head) {
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
  const whole = Math.max(300, Math.min(620, Math.max(width * 0.66, beside))),
    height = Math.round(byId("plane").classList.contains("floating") ? width * 0.8 : whole);
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
  if (run.head)
    what =
      "Every mark is a prediction of the whole model; the dots by its head, recomputed. " +
      "Dots: all of a group's mass on one message, sized by α, coloured by its source's class; " +
      "a rim marks the oracle's. Other mixtures are not drawn: with a nonlinear head " +
      "they fill no polygon.";
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
  if (!text || node.run.head || !node.count) return startWhatIf(node, "frozen");
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
  return ["frozen", "oracle", "nearest", ...run.repairs.map((repair) => repair.key)];
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
