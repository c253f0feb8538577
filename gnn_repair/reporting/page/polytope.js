// Drawing the evidence polytope of a node.

const MOST_VERTICES = 400;

function viewOf(node, kind, one, two) {
  if (node.run.classCount === 2) return marginView(node, one, one);
  if (kind === "spread") return spreadView(node);
  return kind === "three" ? threeClassView(node, one, two) : marginView(node, one, two);
}

function drawPolytope(width, height, node, view, whatIf, hidden, zoom) {
  const svg = canvas(width, height, `${node.run.tail ? "Predictions" : "Evidence polytope"} of node ${nodeName(node.run, node.id)}`);
  const hull = polytopeHull(node, view);
  const points = node.points.map((point, j) => ({ ...point, at: place(view, point.logits), look: lookOf(point.key, point.kind, j - 2) })).filter((point) => !hidden.has(point.key) || point.key === "frozen");
  const shifts = points.filter((point) => hull.length && point.kind === "shift" && !NODE_ONLY.has(point.key)).slice(0, 1);
  const frame = zoomed(frameOf(hull, points, shifts, node, view, width, height), zoom, points[0].at);
  const inside = shape("g", { "clip-path": "url(#plane-clip)" });
  svg.append(shape("clipPath", { id: "plane-clip" }, shape("rect", { x: frame.box.left, y: frame.box.top, width: frame.box.right - frame.box.left, height: frame.box.bottom - frame.box.top })));
  drawRegions(svg, view, frame, node);
  drawAxes(svg, view, frame);
  svg.append(inside);
  if (hull.length) inside.append(shape("polygon", { points: path(hull, frame), class: "hull", style: "fill:var(--true);fill-opacity:var(--hull);stroke:var(--true);stroke-width:1.8;stroke-linejoin:round" }));
  for (const point of shifts) drawShiftedHull(inside, hull, point, node, view, frame);
  drawVertices(inside, node, view, frame);
  drawPoints(inside, points, frame, node);
  const moving = shape("g", { id: "what-if-point" });
  inside.append(moving);
  const move = (logits, shown) => {
    moving.replaceChildren();
    if (!shown) return;
    const at = place(view, logits);
    moving.append(marker(LOOKS.get("what_if"), frame.x(at[0]), frame.y(at[1]), 8, { tip: ["What if", "the mixture set with the sliders"] }));
    moving.append(words(frame.x(at[0]) + 13, frame.y(at[1]) + 4, "what if", { class: "bold halo", style: "fill:var(--what-if)" }));
  };
  move(whatIf.logits, whatIf.touched);
  return { svg, move, frame };
}

function place(view, logits) { return [dot(view.x, logits), dot(view.y, logits)]; }
function path(points, frame) { return points.map((p) => `${frame.x(p[0]).toFixed(2)},${frame.y(p[1]).toFixed(2)}`).join(" "); }

// What must be in the picture: the hull, every point, the shifted hull and the boundary.
function frameOf(hull, points, shifts, node, view, width, height) {
  const seen = [...hull, ...points.map((point) => point.at)];
  if (!hull.length) for (const k of shownTerms(node, MOST_VERTICES)) seen.push(place(view, vertexLogits(node, k)));
  const frozen = points[0].at;
  for (const { at } of shifts) for (const p of hull) seen.push([p[0] + at[0] - frozen[0], p[1] + at[1] - frozen[1]]);
  if (view.regions.length === 3) seen.push([0, 0]);
  const box = { left: 54, right: width - 14, top: 14, bottom: height - 42 };
  let [left, right] = padded(seen.map((p) => p[0])), [bottom, top] = padded(seen.map((p) => p[1]));
  if (node.run.classCount === 2) [bottom, top] = [-1, 1];
  if (view.equal) {
    const unit = Math.max((right - left) / (box.right - box.left), (top - bottom) / (box.bottom - box.top));
    const addX = (unit * (box.right - box.left) - (right - left)) / 2, addY = (unit * (box.bottom - box.top) - (top - bottom)) / 2;
    left -= addX; right += addX; bottom -= addY; top += addY;
  }
  return {
    box, left, right, bottom, top,
    x: scale(left, right, box.left, box.right), y: scale(bottom, top, box.bottom, box.top),
  };
}

// The frame around the frozen point, `zoom.by` times closer and moved by `zoom.across`, `zoom.up`
// frame widths.
function zoomed(frame, zoom, centre) {
  if (zoom.by === 1 && !zoom.across && !zoom.up) return frame;
  const wide = (frame.right - frame.left) / zoom.by, high = (frame.top - frame.bottom) / zoom.by;
  const t = 1 - 1 / zoom.by;
  const x = (1 - t) * (frame.left + frame.right) / 2 + t * centre[0] + zoom.across * wide;
  const y = (1 - t) * (frame.bottom + frame.top) / 2 + t * centre[1] + zoom.up * high;
  const [left, right, bottom, top] = [x - wide / 2, x + wide / 2, y - high / 2, y + high / 2], { box } = frame;
  return { box, left, right, bottom, top, x: scale(left, right, box.left, box.right), y: scale(bottom, top, box.bottom, box.top) };
}

function padded(values) {
  let low = Infinity, high = -Infinity;
  for (const v of values) { if (v < low) low = v; if (v > high) high = v; }
  const pad = 0.09 * (high - low) || 0.5;
  return [low - pad, high + pad];
}

function drawRegions(svg, view, frame, node) {
  const total = (frame.right - frame.left) * (frame.top - frame.bottom);
  view.regions.forEach((region, k) => {
    const polygon = regionPolygon(view, k, frame);
    if (polygon.length < 3) return;
    svg.append(shape("polygon", {
      points: path(polygon, frame), class: `region ${region.role}`,
      style: `fill:var(--${region.role});fill-opacity:var(--region);stroke:var(--muted);stroke-width:1`,
    }));
    if (areaOf(polygon) < 0.02 * total) return;
    const { box } = frame, [x, y, anchor] = regionCorner(polygon, frame);
    const title = region.role === "true" ? `${className(node.run, region.c)} wins (true class)` : `${className(node.run, region.c)} wins`;
    svg.append(words(Math.min(box.right - 6, Math.max(box.left + 6, x)), y, shorten(title, (box.right - box.left) * 0.45), {
      class: "halo bold", "text-anchor": anchor, style: `fill:var(--${region.role})`,
    }));
  });
}

function areaOf(polygon) {
  let twice = 0;
  polygon.forEach((p, j) => { const q = polygon[(j + 1) % polygon.length]; twice += p[0] * q[1] - q[0] * p[1]; });
  return Math.abs(twice) / 2;
}

// The corner of a region that lies nearest a corner of the frame carries its name.
function regionCorner(polygon, frame) {
  const { box } = frame;
  const corners = [["right", "top"], ["left", "bottom"], ["right", "bottom"], ["left", "top"]];
  for (const [side, end] of corners) {
    const held = polygon.some((p) => Math.abs(p[0] - frame[side]) < 1e-9 * (frame.right - frame.left) && Math.abs(p[1] - frame[end]) < 1e-9 * (frame.top - frame.bottom));
    if (held) return [side === "right" ? box.right - 8 : box.left + 8, end === "top" ? box.top + 18 : box.bottom - 8, side === "right" ? "end" : "start"];
  }
  const x = polygon.reduce((sum, p) => sum + p[0], 0) / polygon.length, y = polygon.reduce((sum, p) => sum + p[1], 0) / polygon.length;
  return [frame.x(x), frame.y(y), "middle"];
}

function drawAxes(svg, view, frame) {
  const { box } = frame;
  svg.append(shape("rect", { x: box.left, y: box.top, width: box.right - box.left, height: box.bottom - box.top, fill: "none", class: "grid" }));
  for (const tick of ticks(frame.left, frame.right, 6)) svg.append(words(frame.x(tick), box.bottom + 15, tickWords(tick), { class: "small muted", "text-anchor": "middle" }));
  for (const tick of ticks(frame.bottom, frame.top, 5)) svg.append(words(box.left - 6, frame.y(tick) + 4, tickWords(tick), { class: "small muted", "text-anchor": "end" }));
  svg.append(words((box.left + box.right) / 2, box.bottom + 34, shorten(view.xTitle, box.right - box.left), { class: "muted", "text-anchor": "middle" }));
  svg.append(words(0, 0, shorten(view.yTitle, box.bottom - box.top), { class: "muted", "text-anchor": "middle", transform: `translate(13 ${(box.top + box.bottom) / 2}) rotate(-90)` }));
}

function drawShiftedHull(svg, hull, point, node, view, frame) {
  const frozen = place(view, node.frozen);
  const moved = hull.map((p) => [p[0] + point.at[0] - frozen[0], p[1] + point.at[1] - frozen[1]]);
  svg.append(shape("polygon", {
    points: path(moved, frame), class: "shifted-hull dash", tip: [`Polytope shifted by ${point.title}`, "same shape, every mixture moved alike"],
    style: `fill:none;stroke:var(${point.look[1]});stroke-width:1.8;stroke-linejoin:round`,
  }));
}

// Terms as dots, sized by share of their group's mass, coloured by the source's class.
function drawVertices(svg, node, view, frame) {
  const roleOf = rolesOf(node), shown = shownTerms(node, MOST_VERTICES), C = node.run.classCount, table = node.run.contributions;
  const home = place(view, node.frozen), centres = node.bounds.map((_, g) => place(view, groupMixture(node, g)));
  for (const k of shown) {
    const g = node.group[k], at = node.alone ? place(view, vertexLogits(node, k)) : [home[0] - centres[g][0], home[1] - centres[g][1]];
    for (let c = 0, row = node.rows[k] * C; c < C && !node.alone; c++) {
      at[0] += node.mass[g] * view.x[c] * table[row + c];
      at[1] += node.mass[g] * view.y[c] * table[row + c];
    }
    const label = node.run.labels[sourceOf(node, k)];
    const share = node.alpha[k] / node.mass[node.group[k]], used = node.witness[k] > ACTIVE;
    svg.append(shape("circle", {
      cx: frame.x(at[0]).toFixed(2), cy: frame.y(at[1]).toFixed(2), r: (2.4 + 5 * Math.sqrt(share)).toFixed(2), "data-term": k,
      class: `vertex ${roleOf(label)}${used ? " used" : ""}`,
      tip: () => termLines(node, k),
    }));
  }
}

function termLines(node, k) {
  const { run } = node, source = sourceOf(node, k), group = run.groups[node.group[k]];
  const lines = [`${source === node.id ? "itself" : `node ${nodeName(run, source)}`}${run.groupCount > 1 ? `, ${group}` : ""}`, `class ${className(run, run.labels[source])}, predicted ${className(run, run.predictions[source])}`];
  const share = (lambda) => percent(lambda / node.mass[node.group[k]]);
  lines.push(`α ${figure(node.alpha[k], 4)} (${share(node.alpha[k])} of the mass)`);
  if (node.witness[k] > ACTIVE) lines.push(`oracle λ ${figure(node.witness[k], 4)} (${share(node.witness[k])})`);
  lines.push(`alone: predicts ${className(run, argmax(vertexLogits(node, k)))}, margin ${signed(verdictOf(vertexLogits(node, k), node.label).margin)}`);
  return lines;
}

// The terms worth drawing first: the witness's, then the heaviest.
function shownTerms(node, most) {
  const all = Array.from({ length: node.count }, (_, k) => k);
  if (node.count <= most) return all;
  const weight = Float64Array.from(all, (k) => (node.witness[k] > ACTIVE ? 1e9 : 0) + node.alpha[k] / node.mass[node.group[k]]);
  return all.sort((a, b) => weight[b] - weight[a]).slice(0, most);
}

function drawPoints(svg, points, frame, node) {
  const from = points[0].at, placed = [], labels = [];
  for (const point of points.slice(1)) {
    const long = Math.hypot(frame.x(point.at[0]) - frame.x(from[0]), frame.y(point.at[1]) - frame.y(from[1]));
    if (long > 14) svg.append(arrow(frame.x(from[0]), frame.y(from[1]), frame.x(point.at[0]), frame.y(point.at[1]), point.key === "oracle" ? "--oracle-edge" : point.look[1]));
  }
  for (const point of [...points].reverse()) {
    const x = frame.x(point.at[0]), y = frame.y(point.at[1]);
    placed.push([x - 8, y - 8, x + 8, y + 8]);
    svg.append(marker(point.look, x, y, 7.5, {
      "data-point": point.key,
      tip: [point.title, `predicts ${className(node.run, point.predicted)}`, `margin of ${className(node.run, node.label)}: ${signed(point.margin, 3)}`],
    }));
  }
  for (const point of points) labels.push(label(point.title.toLowerCase(), frame.x(point.at[0]), frame.y(point.at[1]), placed, frame.box));
  svg.append(...labels.filter((made) => made));
}

function arrow(x1, y1, x2, y2, colour) {
  const length = Math.hypot(x2 - x1, y2 - y1), ux = (x2 - x1) / length, uy = (y2 - y1) / length;
  const tx = x2 - 11 * ux, ty = y2 - 11 * uy;
  const head = `M${tx},${ty}L${tx - 8 * ux - 4 * uy},${ty - 8 * uy + 4 * ux}L${tx - 8 * ux + 4 * uy},${ty - 8 * uy - 4 * ux}Z`;
  return shape("g", { style: `stroke:var(${colour});fill:var(${colour});pointer-events:none` },
    shape("line", { x1, y1, x2: tx - 6 * ux, y2: ty - 6 * uy, style: "stroke-width:2.2" }), shape("path", { d: head, style: "stroke:none" }));
}

// A label beside a marker at the first of a few places that is free.
function label(text, x, y, placed, box) {
  const wide = 6.6 * text.length, tries = [[12, 4], [-12 - wide, 4], [-wide / 2, -13], [-wide / 2, 21], [12, 18], [12, -10], [-12 - wide, -10], [-12 - wide, 18], [14, 32], [14, -24]];
  const spot = (dx, dy) => [x + dx, y + dy - 10, x + dx + wide, y + dy + 3];
  const free = ([l, t, r, b]) => l > box.left && r < box.right && t > box.top && b < box.bottom && !placed.some((p) => l < p[2] && r > p[0] && t < p[3] && b > p[1]);
  const found = tries.find(([dx, dy]) => free(spot(dx, dy)));
  if (!found) return null; // The list beside the plane names every marker.
  const [dx, dy] = found;
  placed.push(spot(dx, dy));
  return words(x + dx, y + dy, text, { class: "bold halo", style: "pointer-events:none" });
}
