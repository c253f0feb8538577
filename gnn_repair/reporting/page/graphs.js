// A graph that is classified as a whole: drawn with its nodes coloured by the witness.

const SETTLING = 160; // steps of the layout; more change nothing that an eye would see

// Numbers below the count of graphs are graphs, the others nodes, counted within their graph.
function pooledName(run, id) {
  const graphs = run.graph_starts.length - 1;
  if (id < graphs) return (run.names && tidyName(run.names[id])) || String(id);
  let low = 0,
    high = graphs;
  const node = id - graphs;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (run.graph_starts[middle] <= node) low = middle;
    else high = middle;
  }
  return String(node - run.graph_starts[low]);
}

// One entry per node of the graph: its terms, and the largest shares of α and of the witness.
function nodesOfGraph(node) {
  const { own, others } = sourcesOf(node, Infinity);
  return (own ? [own, ...others] : others).sort((a, b) => a.id - b.id);
}

// Springs along edges, repulsion between all: the same picture every time.
function settled(entries, neighbours, width, height) {
  const n = entries.length,
    at = new Map(entries.map((entry, j) => [entry.id, j]));
  const spots = entries.map((_, j) => {
    const angle = (2 * Math.PI * j) / n;
    return { x: Math.cos(angle), y: Math.sin(angle), dx: 0, dy: 0 };
  });
  const links = [];
  for (const [j, entry] of entries.entries())
    for (const other of neighbours ? neighbours(entry.id) : [])
      if (other > entry.id && at.has(other)) links.push([j, at.get(other)]);
  const ideal = 1.6 / Math.sqrt(Math.max(1, n));
  for (let step = 0; links.length && step < SETTLING; step++) {
    const heat = 0.15 * (1 - step / SETTLING) + 0.002;
    for (const spot of spots) spot.dx = spot.dy = 0;
    for (let i = 0; i < n; i++)
      for (let j = 0; j < i; j++) nudge(spots[i], spots[j], (d) => (ideal * ideal) / d, 1);
    for (const [i, j] of links) nudge(spots[i], spots[j], (d) => (d * d) / ideal, -1);
    for (const spot of spots) {
      const size = Math.hypot(spot.dx, spot.dy) || 1;
      spot.x += (spot.dx / size) * Math.min(size, heat);
      spot.y += (spot.dy / size) * Math.min(size, heat);
    }
  }
  return { spots: fitted(spots, width, height), links };
}

function nudge(a, b, force, sign) {
  const x = a.x - b.x || 1e-3,
    y = a.y - b.y || 1e-3,
    d = Math.max(1e-3, Math.hypot(x, y)),
    by = (sign * force(d)) / d;
  a.dx += x * by;
  a.dy += y * by;
  b.dx -= x * by;
  b.dy -= y * by;
}

function fitted(spots, width, height) {
  const margin = 34;
  const scaled = (key, size) => {
    const values = spots.map((spot) => spot[key]),
      low = Math.min(...values),
      span = Math.max(...values) - low || 1;
    return values.map((value) => margin + ((value - low) / span) * (size - 2 * margin));
  };
  const xs = scaled("x", width),
    ys = scaled("y", height);
  return spots.map((_, j) => ({ x: xs[j], y: ys[j] }));
}

function drawPooledGraph(width, node) {
  const { run } = node,
    entries = nodesOfGraph(node),
    height = Math.round(Math.min(520, Math.max(300, width * 0.55)));
  const svg = canvas(width, height, `Nodes of graph ${nodeName(run, node.id)}`);
  const { spots, links } = settled(entries, run.neighbours, width, height);
  for (const [i, j] of links) {
    const ends = { x1: spots[i].x, y1: spots[i].y, x2: spots[j].x, y2: spots[j].y };
    svg.append(shape("line", { ...ends, style: "stroke:var(--other);stroke-opacity:0.6" }));
  }
  const most = Math.max(...entries.map((entry) => entry.used), 1e-12),
    heaviest = Math.max(...entries.map((entry) => entry.share), 1e-12);
  for (const [j, entry] of entries.entries())
    svg.append(pooledMark(node, entry, spots[j], entry.used / most, entry.share / heaviest));
  pooledWords(run, entries, links.length);
  byId("colouring").parentElement.hidden = true;
  return svg;
}

function pooledMark(node, entry, { x, y }, lambda, alpha) {
  const radius = 6 + 5 * Math.sqrt(alpha);
  const group = shape("g", {
    "data-source": entry.id,
    "data-lambda": lambda.toFixed(3),
    tip: () => entry.terms.slice(0, 3).flatMap((k) => termLines(node, k)),
  });
  group.append(
    shape("circle", { cx: x, cy: y, r: radius, style: "fill:var(--panel);stroke:var(--other)" }),
    shape("circle", {
      cx: x,
      cy: y,
      r: radius,
      style: `fill:var(--oracle-edge);fill-opacity:${lambda.toFixed(3)};stroke:var(--ink)`,
    }),
  );
  if (entry.used || node.count <= 60)
    group.append(
      words(x, y + radius + 13, nodeName(node.run, entry.id), {
        class: entry.used ? "small bold halo" : "small halo",
        "text-anchor": "middle",
      }),
    );
  return group;
}

function pooledWords(run, entries, links) {
  const used = entries.filter((entry) => entry.used).length;
  byId("neighbourhood-caption").textContent =
    `The graph's ${count(entries.length)} nodes. The fuller a node is coloured, the more of the ` +
    `mass the oracle gives it (${count(used)} have some); larger circles have a larger α.` +
    (links ? "" : " Pass edge_index= to see its edges.");
}
