// What is drawn inside the polytope: terms, points of logit space and their labels.

// Terms as dots, sized by share of their group's mass, coloured by the source's class; returns the
// room that they take.
function drawVertices(svg, node, view, frame) {
  const roleOf = rolesOf(node),
    shown = shownTerms(node, MOST_VERTICES),
    C = node.run.classCount,
    table = node.run.contributions;
  const taken = [],
    home = positionIn(view, node.frozen),
    centres = node.bounds.map((_, g) => positionIn(view, groupMixture(node, g)));
  for (const k of shown) {
    const g = node.group[k],
      at = node.alone
        ? positionIn(view, vertexLogits(node, k))
        : [home[0] - centres[g][0], home[1] - centres[g][1]];
    for (let c = 0, row = node.rows[k] * C; c < C && !node.alone; c++) {
      at[0] += node.mass[g] * view.x[c] * table[row + c];
      at[1] += node.mass[g] * view.y[c] * table[row + c];
    }
    const label = node.run.labels[sourceOf(node, k)];
    const share = node.alpha[k] / node.mass[node.group[k]],
      used = node.witness[k] > ACTIVE,
      [x, y, r] = [frame.x(at[0]), frame.y(at[1]), 2.4 + 5 * Math.sqrt(share)];
    taken.push(around({ x, y }, r));
    svg.append(
      shape("circle", {
        cx: x.toFixed(2),
        cy: y.toFixed(2),
        r: r.toFixed(2),
        "data-term": k,
        class: `vertex ${roleOf(label)}${used ? " used" : ""}`,
        tip: () => termLines(node, k),
      }),
    );
  }
  return taken;
}

function termLines(node, k) {
  const { run } = node,
    source = sourceOf(node, k),
    group = run.groups[node.group[k]];
  const lines = [senderWords(node, source) + (run.groupCount > 1 ? `, ${group}` : "")];
  // A node of a classified graph has no class; what it gives alone is said below.
  if (!isForeign(run, source) && !run.graph_starts)
    lines.push(
      `is ${className(run, run.labels[source])}, ` +
        `predicted ${className(run, run.predictions[source])}`,
    );
  const share = (lambda) => percent(lambda / node.mass[node.group[k]]);
  lines.push(`α ${figure(node.alpha[k], 4)} (${share(node.alpha[k])} of the mass)`);
  if (node.witness[k] > ACTIVE)
    lines.push(`oracle λ ${figure(node.witness[k], 4)} (${share(node.witness[k])})`);
  lines.push(
    `alone: predicts ${className(run, argmax(vertexLogits(node, k)))}, ` +
      `margin ${signed(verdictOf(vertexLogits(node, k), node.label).margin)}`,
  );
  return lines;
}

// The terms worth drawing first: the witness's, then the heaviest.
function shownTerms(node, most) {
  const all = Array.from({ length: node.count }, (_, k) => k);
  if (node.count <= most) return all;
  const weight = Float64Array.from(
    all,
    (k) => (node.witness[k] > ACTIVE ? 1e9 : 0) + node.alpha[k] / node.mass[node.group[k]],
  );
  return all.sort((a, b) => weight[b] - weight[a]).slice(0, most);
}

// Where a prediction is drawn: at its place, or at the edge if that lies outside the picture.
function spotOf(point, frame) {
  const { box } = frame,
    x = frame.x(point.at[0]),
    y = frame.y(point.at[1]);
  const off = x < box.left - 1 || x > box.right + 1 || y < box.top - 1 || y > box.bottom + 1;
  if (!off) return { x, y, off };
  const inner = 12,
    cx = (box.left + box.right) / 2,
    cy = (box.top + box.bottom) / 2;
  const share = Math.min(
    ((box.right - box.left) / 2 - inner) / Math.abs(x - cx),
    ((box.bottom - box.top) / 2 - inner) / Math.abs(y - cy),
  );
  return { x: cx + share * (x - cx), y: cy + share * (y - cy), off };
}

function arrowColour(point) {
  return point.key === "oracle" ? "--oracle-edge" : point.look[1];
}

function drawPoints(svg, points, frame, node, placed) {
  const spots = points.map((point) => spotOf(point, frame)),
    from = spots[0];
  points.forEach((point, j) => {
    const { x, y } = spots[j];
    if (j && !from.off && Math.hypot(x - from.x, y - from.y) > 14)
      svg.append(arrow(from.x, from.y, x, y, arrowColour(point)));
  });
  for (let j = points.length - 1; j >= 0; j--) {
    const point = points[j],
      { x, y, off } = spots[j];
    placed.push([x - 8, y - 8, x + 8, y + 8]);
    svg.append(
      marker(point.look, x, y, 7.5, {
        [off ? "data-off" : "data-point"]: point.key,
        tip: [
          point.title,
          `predicts ${className(node.run, point.predicted)}`,
          `margin of ${className(node.run, node.label)}: ${signed(point.margin, 3)}`,
          ...(off ? ["outside the picture; “fit all” shows it"] : []),
        ],
      }),
    );
  }
  // What lies outside is named first: nothing else says where it is.
  const order = points.map((_, j) => j).sort((a, b) => spots[b].off - spots[a].off);
  const labels = order.map((j) => {
    const text = points[j].title.toLowerCase() + (spots[j].off ? " (outside)" : "");
    return freeLabel(text, spots[j].x, spots[j].y, placed, frame.box);
  });
  svg.append(...labels.filter((made) => made));
}

function arrow(x1, y1, x2, y2, colour) {
  const length = Math.hypot(x2 - x1, y2 - y1),
    ux = (x2 - x1) / length,
    uy = (y2 - y1) / length;
  const tx = x2 - 11 * ux,
    ty = y2 - 11 * uy;
  const head =
    `M${tx},${ty}L${tx - 8 * ux - 4 * uy},${ty - 8 * uy + 4 * ux}` +
    `L${tx - 8 * ux + 4 * uy},${ty - 8 * uy - 4 * ux}Z`;
  return shape(
    "g",
    { style: `stroke:var(${colour});fill:var(${colour});pointer-events:none` },
    shape("line", { x1, y1, x2: tx - 6 * ux, y2: ty - 6 * uy, style: "stroke-width:2.2" }),
    shape("path", { d: head, style: "stroke:none" }),
  );
}

function isFree([l, t, r, b], placed, box) {
  return (
    l >= box.left &&
    r <= box.right &&
    t >= box.top &&
    b <= box.bottom &&
    !placed.some((p) => l < p[2] && r > p[0] && t < p[3] && b > p[1])
  );
}

// A label beside a marker at the first of a few places that is free.
function freeLabel(text, x, y, placed, box) {
  const wide = textWidth(text, 12, 650),
    tries = [
      [12, 4],
      [-12 - wide, 4],
      [-wide / 2, -13],
      [-wide / 2, 21],
      [12, 18],
      [12, -10],
      [-12 - wide, -10],
      [-12 - wide, 18],
      [14, 32],
      [14, -24],
      [-wide, 32],
      [-wide, -24],
      [-wide, 48],
    ];
  const spot = (dx, dy) => [x + dx, y + dy - 11, x + dx + wide, y + dy + 4];
  const found = tries.find(([dx, dy]) => isFree(spot(dx, dy), placed, box));
  if (!found) return null; // The list beside the plane names every marker.
  const [dx, dy] = found;
  placed.push(spot(dx, dy));
  return words(x + dx, y + dy, text, {
    class: "bold halo point-name",
    style: "pointer-events:none",
  });
}
