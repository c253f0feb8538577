// Who sends the messages: a node's neighbourhood, or the nodes of a classified graph.

// A node among its sources: rings by group, widths by coefficient, the witness marked.

const MOST_SOURCES = 60;

// One entry per source: its terms, total α share, whether the witness uses it, its first group.
function sourcesOf(node, most = MOST_SOURCES) {
  const found = new Map();
  for (let k = 0; k < node.count; k++) {
    const id = sourceOf(node, k),
      share = node.alpha[k] / node.mass[node.group[k]];
    const entry = found.get(id) || { id, terms: [], share: 0, used: 0, ring: node.group[k] };
    entry.terms.push(k);
    entry.share = Math.max(entry.share, share);
    entry.used = Math.max(
      entry.used,
      node.witness[k] > ACTIVE ? node.witness[k] / node.mass[node.group[k]] : 0,
    );
    entry.ring = Math.min(entry.ring, node.group[k]);
    found.set(id, entry);
  }
  const own = found.get(node.id);
  found.delete(node.id);
  const others = [...found.values()].sort(
    (a, b) => (b.used > 0) - (a.used > 0) || b.share - a.share,
  );
  return { own, others: others.slice(0, most), total: others.length };
}

function drawNeighbourhood(width, node, colouring, goTo) {
  const { own, others, total } = sourcesOf(node),
    { run } = node;
  const few = others.length <= 8;
  const height = few ? 280 : Math.round(Math.min(520, Math.max(320, width * 0.62)));
  const svg = canvas(width, height, `Neighbourhood of ${titled(run, node.id)}`);
  const roleOf = rolesOf(node),
    classOf = (id) => (colouring === "label" ? run.labels[id] : run.predictions[id]);
  // Sources of one class sit together, so that the eye can count them.
  others.sort((a, b) => a.ring - b.ring || classOf(a.id) - classOf(b.id) || b.share - a.share);
  const spots = ringSpots(others, width, height, few),
    centre = { x: width / 2, y: height / 2 };
  drawLinks(svg, run, spots);
  const most = Math.max(...others.map((entry) => entry.share), 1e-12);
  for (const { entry, x, y } of spots) {
    const thick = 0.8 + Math.min(7, 120 / spots.length) * (entry.share / most);
    svg.append(
      shape("line", {
        x1: x,
        y1: y,
        x2: centre.x,
        y2: centre.y,
        style:
          `stroke:var(${entry.used ? "--oracle-edge" : "--other"});` +
          `stroke-opacity:${entry.used ? 0.9 : 0.45};stroke-width:${thick.toFixed(2)}`,
      }),
    );
  }
  for (const { entry, x, y } of spots)
    svg.append(sourceMark(node, entry, x, y, roleOf(classOf(entry.id)), goTo, spots.length));
  nameSources(svg, run, spots, centre);
  svg.append(...centreMark(node, own, centre, roleOf(classOf(node.id))));
  neighbourhoodWords(node, others.length, total, colouring);
  roam(svg);
  return svg;
}

// A few sources sit on a circle, many on an ellipse that fills the width, in two rows if need be.
function ringSpots(others, width, height, few) {
  const wide = Math.min(width / 2 - 42, (height / 2 - 30) * (few ? 1.4 : 3));
  const rings = [...new Set(others.map((entry) => entry.ring))],
    crowded = rings.length === 1 && others.length > 24;
  return others.map((entry, j) => {
    const inRing = others.filter((other) => other.ring === entry.ring),
      at = inRing.indexOf(entry);
    const angle = (2 * Math.PI * (at + 0.5)) / inRing.length - Math.PI / 2;
    const level = crowded ? (j % 2 ? 1 : 0.74) : (rings.indexOf(entry.ring) + 1) / rings.length;
    const reach = 0.3 + 0.7 * level;
    return {
      entry,
      x: width / 2 + wide * reach * Math.cos(angle),
      y: height / 2 + (height / 2 - 30) * reach * Math.sin(angle),
    };
  });
}

// Edges among the sources themselves, faintly.
function drawLinks(svg, run, spots) {
  if (!run.neighbours) return;
  const at = new Map(spots.map((spot) => [spot.entry.id, spot]));
  for (const spot of spots) {
    for (const other of run.neighbours(spot.entry.id)) {
      const end = at.get(other);
      if (end && other > spot.entry.id)
        svg.append(shape("line", { x1: spot.x, y1: spot.y, x2: end.x, y2: end.y, class: "grid" }));
    }
  }
}

function sourceMark(node, entry, x, y, role, goTo, crowd) {
  const { run } = node,
    listed = run.position.has(entry.id),
    radius = crowd > 30 ? 7 : 10;
  const group = shape("g", {
    "data-source": entry.id,
    class: listed ? "go" : null,
    role: listed ? "button" : null,
    tabindex: listed ? "-1" : null,
    "aria-label": listed ? `Open ${run.noun} ${nodeName(run, entry.id)}` : null,
    onclick: listed ? () => goTo(run.position.get(entry.id)) : null,
    tip: () => [
      ...entry.terms.slice(0, 3).flatMap((k) => termLines(node, k)),
      ...(listed ? ["click to open"] : []),
    ],
  });
  // Room for a finger around a small mark.
  group.append(shape("circle", { cx: x, cy: y, r: 13, fill: "transparent" }));
  if (entry.used) group.append(marker(LOOKS.get("oracle"), x, y, radius + 7));
  group.append(
    shape("circle", {
      cx: x,
      cy: y,
      r: radius,
      style: `fill:var(--${role});stroke:var(--panel);stroke-width:1.5`,
    }),
  );
  return group;
}

// Names below the marks, those of the witness first; one that has no room is in the mark's card.
function nameSources(svg, run, spots, centre) {
  const everywhere = { left: -Infinity, right: Infinity, top: -Infinity, bottom: Infinity },
    placed = [[centre.x - 45, centre.y - 16, centre.x + 45, centre.y + 38]];
  for (const { entry, x, y } of [...spots].sort((a, b) => b.entry.used - a.entry.used)) {
    const text = shorten(sourceName(run, entry.id), 70, 11),
      half = textWidth(text, 11) / 2,
      below = y + (spots.length > 30 ? 21 : 24);
    const spot = [x - half, below - 10, x + half, below + 3];
    if (!isFree(spot, placed, everywhere)) continue;
    placed.push(spot);
    svg.append(
      roomy(x, below, sourceName(run, entry.id), 70, {
        class: "small halo",
        "text-anchor": "middle",
      }),
    );
  }
}

function centreMark(node, own, { x, y }, role) {
  const made = [];
  if (own && own.used) made.push(marker(LOOKS.get("oracle"), x, y, 25));
  if (own)
    made.push(
      shape("circle", {
        cx: x,
        cy: y,
        r: 17 + 5 * own.share,
        style: "fill:none;stroke:var(--other);stroke-dasharray:3 3",
        tip: () => termLines(node, own.terms[0]),
      }),
    );
  made.push(
    shape("circle", {
      cx: x,
      cy: y,
      r: 14,
      style: `fill:var(--${role});stroke:var(--ink);stroke-width:2.5`,
      tip: () => (own ? termLines(node, own.terms[0]) : [titled(node.run, node.id)]),
    }),
  );
  made.push(
    roomy(x, y + 34, nodeName(node.run, node.id), 90, {
      class: "bold halo",
      "text-anchor": "middle",
    }),
  );
  return made;
}

function neighbourhoodWords(node, shown, total, colouring) {
  const [one, two] = rivalsOf(node),
    { run } = node,
    by = colouring === "label" ? "class" : "frozen prediction";
  const caption = byId("neighbourhood-caption");
  caption.replaceChildren(`Coloured by ${by}: `);
  for (const [role, text] of [
    ["true", className(run, node.label)],
    ["rival", className(run, one)],
    ...(two !== one ? [["rival-two", className(run, two)]] : []),
    ["other", "any other"],
  ]) {
    caption.append(
      element("span", { class: "swatch", style: `background:var(--${role})` }),
      `${text}  `,
    );
  }
  caption.append(
    ` — Line width: α. Star: used by the oracle. Dashed ring: the ${run.noun}'s own message.` +
      (run.groupCount > 1 ? " Rings: groups, inside out." : "") +
      (shown < total
        ? ` ${shown} of ${count(total)} sources shown, the witness and the heaviest first.`
        : ""),
  );
}

// A graph that is classified as a whole: drawn with its nodes coloured by the witness.

const SETTLING = 160; // steps of the layout; more change nothing that an eye would see

// Numbers below the count of graphs are graphs, then come nodes, counted over the whole batch as
// everywhere else, then clusters and edges, which have names.
function pooledName(run, id) {
  const graphs = run.graph_starts.length - 1,
    node = id - graphs,
    named = node - run.graph_starts[graphs];
  if (id < graphs) return (run.names && tidyName(run.names[id])) || String(id);
  return named >= 0 ? tidyName(run.names[graphs + named]) : String(node);
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
