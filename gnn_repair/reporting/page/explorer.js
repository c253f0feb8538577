// The node explorer: one node at a time, all its views in step.

function openExplorer(run) {
  const state = {
    i: -1,
    view: "margins",
    one: null,
    two: null,
    weighting: "frozen",
    colouring: "label",
    sort: "",
    descending: true,
    all: false,
    hidden: hiddenAtFirst(run),
    fixed: Boolean(run.tail),
    zoom: { by: 1, across: 0, up: 0 },
  };
  const explorer = { state };
  let node = null,
    whatIf = null,
    movers = [];
  // Widths are noted when they change: asking for them while drawing would lay the page out again.
  const widths = {};

  const list = openList(run, (i) => explorer.show(i));
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

  function resetWhatIf(lambda, touched) {
    whatIf = { lambda: Float64Array.from(lambda), touched };
    whatIf.logits = logitsAt(node, whatIf.lambda);
  }

  function moved() {
    whatIf.logits = logitsAt(node, whatIf.lambda);
    for (const move of movers) if (move) move(whatIf.logits, whatIf.touched);
    drawWhatIfLine(node, whatIf);
  }

  function drawPlane() {
    const width = widths.plane;
    if (!width || !node) return;
    const view = viewOf(
      node,
      state.view,
      state.one ?? rivalsOf(node)[0],
      state.two ?? rivalsOf(node)[1],
    );
    // Beside a long list of logits the plane may be as tall as the list (about 19 px a line).
    const beside =
      window.innerWidth > 1100 ? 19 * run.classCount + 25 * node.points.length + 30 : 0;
    const height = Math.round(Math.max(300, Math.min(620, Math.max(width * 0.66, beside))));
    const { svg, move } = drawPolytope(width, height, node, view, whatIf, state.hidden, state.zoom);
    byId("plane").replaceChildren(svg);
    movers[0] = move;
    const hidden =
      node.count > MOST_VERTICES
        ? ` ${count(MOST_VERTICES)} of ${count(node.count)} terms drawn.`
        : "";
    const what = run.tail
      ? "Every mark is a prediction of the whole model; the dots by its tail as certified. " +
        "Dots: all of a group's mass on one message, sized by α, coloured by its source's class; " +
        "a rim marks the oracle's. What other mixtures give is not drawn: behind a nonlinear " +
        "tail it is no polygon."
      : "Filled: all mixtures the frozen messages allow. Dots: terms, sized by α, " +
        "coloured by their source's class; a rim marks the oracle's.";
    byId("plane-caption").textContent = `${view.note} ${what}${hidden}`;
    const needed = state.view !== "spread" && run.classCount > 2;
    byId("rival-one-label").hidden = !needed;
    byId("rival-two-label").hidden = !needed;
  }

  function drawSide() {
    const width = widths.logits;
    if (width && node) movers[1] = drawLogits(byId("logits"), width, node, whatIf, state.hidden);
  }

  function drawTable() {
    movers[2] = drawTerms(node, state, whatIf, (k, value) => {
      moveMass(node, whatIf.lambda, k, value);
      whatIf.touched = true;
      moved();
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

  function fillRivals() {
    const options = run.classes.map((name, c) => [c, name]).filter(([c]) => c !== node.label);
    fill(byId("rival-one"), options, rivalsOf(node)[0]);
    fill(byId("rival-two"), options, rivalsOf(node)[1]);
    fill(byId("weighting"), weightingsOf(node), state.weighting);
  }

  function fillButtons() {
    if (run.tail) return;
    const made = node.points
      .filter((point) => point.coefficients && node.count)
      .map((point) => {
        const button = element("button", {
          type: "button",
          "data-set": point.key,
          onclick: () => {
            resetWhatIf(point.coefficients, point.key !== "frozen");
            moved();
          },
        });
        button.textContent = point.title;
        return button;
      });
    byId("what-if-buttons").replaceChildren(...(made.length ? ["Start from ", ...made] : []));
  }

  explorer.show = (i) => {
    Object.assign(state, {
      i,
      one: null,
      two: null,
      sort: "",
      all: false,
      zoom: { by: 1, across: 0, up: 0 },
    });
    node = openNode(run, i);
    list.choose(i);
    resetWhatIf(node.alpha, false);
    drawHead(node);
    drawCertificate(node);
    movers = [];
    movers[3] = drawReadout(node, state.hidden, (key, shown) => {
      state.hidden[shown ? "delete" : "add"](key);
      drawSide();
      drawPlane();
    });
    fillRivals();
    fillButtons();
    drawSide();
    drawPlane();
    drawTable();
    drawGraph();
    movers[3](whatIf.logits);
    const address = `#node=${node.id}`;
    if (location.hash !== address) history.replaceState(null, "", address);
    explorer.node = node;
  };
  explorer.step = list.step;
  explorer.list = list;
  explorer.redraw = () => {
    list.draw();
    drawPlane();
    drawSide();
    drawGraph();
  };

  state.sortBy = (key) => {
    Object.assign(
      state,
      state.sort === key ? { descending: !state.descending } : { sort: key, descending: true },
    );
    drawTable();
  };
  state.showAll = () => {
    state.all = true;
    drawTable();
  };
  byId("view").addEventListener("change", (event) => {
    state.view = event.target.value;
    drawPlane();
  });
  byId("rival-one").addEventListener("change", (event) => {
    state.one = Number(event.target.value);
    drawPlane();
  });
  byId("rival-two").addEventListener("change", (event) => {
    state.two = Number(event.target.value);
    drawPlane();
  });
  byId("weighting").addEventListener("change", (event) => {
    state.weighting = event.target.value;
    drawTable();
  });
  byId("colouring").addEventListener("change", (event) => {
    state.colouring = event.target.value;
    drawGraph();
  });
  for (const [id, draw] of [
    ["plane", drawPlane],
    ["logits", drawSide],
    ["neighbourhood", drawGraph],
  ]) {
    widths[id] = byId(id).clientWidth;
    new ResizeObserver(() => {
      if (byId(id).clientWidth !== widths[id]) {
        widths[id] = byId(id).clientWidth;
        if (node) draw();
      }
    }).observe(byId(id));
  }
  for (const [id, by] of [
    ["closer", 2],
    ["farther", 0.5],
    ["fit", 0],
  ]) {
    byId(id).addEventListener("click", () => {
      state.zoom = by
        ? { ...state.zoom, by: Math.min(512, Math.max(0.5, state.zoom.by * by)) }
        : { by: 1, across: 0, up: 0 };
      drawPlane();
    });
  }
  if (run.tail) {
    byId("plane-panel").querySelector("h2").textContent = "Predictions in logit space";
    byId("terms-panel").querySelector("h2").textContent = "Terms, each alone";
    byId("weighting").parentElement.hidden = true;
  }
  dragPlane(state, drawPlane);
  linkTerms();
  return explorer;
}

// A term under the pointer lights up in the table, in the plane and in the neighbourhood.
function linkTerms() {
  let lit = [];
  byId("node").addEventListener("pointerover", (event) => {
    const over = event.target.closest("[data-term]");
    for (const mark of lit) mark.classList.remove("lit");
    lit = over
      ? [...byId("plane").querySelectorAll(`circle[data-term="${over.dataset.term}"]`)]
      : [];
    for (const mark of lit) mark.classList.add("lit");
  });
}

// Dragging moves the picture.
function dragPlane(state, redraw) {
  const box = byId("plane");
  let from = null;
  box.addEventListener("pointerdown", (event) => {
    if (event.pointerType === "mouse") from = { x: event.clientX, y: event.clientY, ...state.zoom };
  });
  box.addEventListener("pointermove", (event) => {
    if (!from || !event.buttons) {
      from = null;
      return;
    }
    const area = box.getBoundingClientRect();
    state.zoom = {
      ...state.zoom,
      across: from.across - (event.clientX - from.x) / area.width,
      up: from.up + (event.clientY - from.y) / area.height,
    };
    redraw();
  });
}
