// The node explorer: one node at a time, all its views in step.

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
    fixed: Boolean(run.tail),
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

  function mixed() {
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
    if (run.tail) return;
    const made = node.points
      .filter((point) => point.coefficients && node.count)
      .map((point) => {
        const button = element("button", {
          type: "button",
          "data-set": point.key,
          onclick: () => {
            whatIf = startWhatIf(node, point.key);
            drawTable();
            mixed();
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
    const { hidden, view, weighting, colouring, a, b } = state;
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
    note(push);
    announce(`${titled(run, node.id)}: ${certificateWords(node)[0]}`);
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
