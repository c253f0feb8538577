// Drawing what the messages of a node can say: in the plane, and on a line with two classes.

// Drawing the evidence polytope of a node.

const MOST_VERTICES = 400;

function viewOf(node, kind, one, two) {
  if (kind === "spread") return spreadView(node);
  return kind === "three" ? threeClassView(node, one, two) : marginView(node, one, two);
}

// `choice` is {fit, edges}: what is in sight, or the frame's edges where somebody moved it.
function drawPolytope(width, height, node, view, whatIf, hidden, choice) {
  const svg = canvas(
    width,
    height,
    `${node.run.head ? "Predictions" : "Evidence polytope"} of ${titled(node.run, node.id)}`,
  );
  const hull = polytopeHull(node, view);
  const points = node.points
    .map((point) => ({
      ...point,
      at: positionIn(view, point.logits),
      look: lookOf(point.key, point.kind, point.place),
    }))
    .filter((point) => !hidden.has(point.key) || point.key === "frozen");
  const shifted = shiftedHulls(hull, points);
  const frame = planeFrame({ node, view, hull, points, shifted, width, height }, choice);
  const edge = `plane-clip-${++clips}`,
    inside = shape("g", { "clip-path": `url(#${edge})` });
  svg.append(
    shape(
      "clipPath",
      { id: edge },
      shape("rect", {
        x: frame.box.left,
        y: frame.box.top,
        width: frame.box.right - frame.box.left,
        height: frame.box.bottom - frame.box.top,
      }),
    ),
  );
  const placed = [];
  drawRegions(svg, view, frame);
  drawAxes(svg, view, frame);
  svg.append(inside);
  if (hull.length)
    inside.append(
      shape("polygon", {
        points: path(hull, frame),
        class: "hull",
        style:
          "fill:var(--true);fill-opacity:var(--hull);" +
          "stroke:var(--true);stroke-width:1.8;stroke-linejoin:round",
      }),
    );
  for (const point of points)
    if (shifted.has(point.key)) drawShiftedHull(inside, shifted.get(point.key), point, frame);
  const dots = drawVertices(inside, node, view, frame);
  const marks = points.map((point) => around(spotOf(point, frame), 8));
  nameRegions(svg, view, frame, node, placed, [marks, [...marks, ...dots]]);
  drawPoints(inside, points, frame, node, placed);
  const moving = shape("g", { id: choice.quiet ? null : "what-if-point" });
  inside.append(moving);
  const move = (logits, shown) => {
    moving.replaceChildren();
    if (!shown) return;
    const { x, y, off } = spotOf({ at: positionIn(view, logits) }, frame),
      end = x > frame.box.right - 70;
    moving.append(
      marker(LOOKS.get("what_if"), x, y, 8, {
        tip: [
          "What if",
          "the mixture set with the sliders",
          ...(off ? ["outside the picture"] : []),
        ],
      }),
      words(x + (end ? -13 : 13), y + 4, "what if", {
        class: "bold halo",
        "text-anchor": end ? "end" : "start",
        style: "fill:var(--what-if)",
      }),
    );
  };
  move(whatIf.logits, whatIf.touched);
  return { svg, move, frame, home: points[0].at };
}

// Every picture clips at a frame of its own name.
let clips = 0;

// The hull moved by the first drawn translation of the whole message set.
function shiftedHulls(hull, points) {
  const found = points.find((point) => point.kind === "shift" && !NODE_ONLY.has(point.key));
  if (!hull.length || !found) return new Map();
  const from = points[0].at,
    shift = [found.at[0] - from[0], found.at[1] - from[1]];
  return new Map([[found.key, hull.map((p) => [p[0] + shift[0], p[1] + shift[1]])]]);
}

function planeFrame({ node, view, hull, points, shifted, width, height }, choice) {
  const box = { left: 62, right: width - 14, top: 14, bottom: height - 42 };
  if (choice.edges) return { ...frameWith(box, ...choice.edges), width };
  const terms = hull.length
    ? []
    : shownTerms(node, MOST_VERTICES).map((k) => positionIn(view, vertexLogits(node, k)));
  const zero = view.regions.length === 3 ? [[0, 0]] : [];
  const seen = inSight({ hull, terms, points, shifted, zero }, choice.fit);
  return { ...frameAround(seen, box, view.equal), width };
}

function positionIn(view, logits) {
  return [scalarProduct(view.x, logits), scalarProduct(view.y, logits)];
}
function path(points, frame) {
  return points.map((p) => `${frame.x(p[0]).toFixed(2)},${frame.y(p[1]).toFixed(2)}`).join(" ");
}

function drawRegions(svg, view, frame) {
  view.regions.forEach((region, k) => {
    const polygon = regionPolygon(view, k, frame);
    if (polygon.length < 3) return;
    svg.append(
      shape("polygon", {
        points: path(polygon, frame),
        class: `region ${region.role}`,
        style:
          `fill:var(--${region.role});fill-opacity:var(--region);` +
          "stroke:var(--muted);stroke-width:1",
      }),
    );
  });
}

function drawAxes(svg, view, frame) {
  const { box } = frame;
  svg.append(
    shape("rect", {
      x: box.left,
      y: box.top,
      width: box.right - box.left,
      height: box.bottom - box.top,
      fill: "none",
      class: "grid",
    }),
  );
  for (const tick of ticks(frame.left, frame.right, 6))
    svg.append(
      words(frame.x(tick), box.bottom + 15, tickWords(tick), {
        class: "small muted",
        "text-anchor": "middle",
      }),
    );
  for (const tick of ticks(frame.bottom, frame.top, 5))
    svg.append(
      words(box.left - 6, frame.y(tick) + 4, tickWords(tick), {
        class: "small muted",
        "text-anchor": "end",
      }),
    );
  svg.append(
    roomy((box.left + box.right) / 2, box.bottom + 34, view.xTitle, box.right - box.left, {
      class: "muted",
      "text-anchor": "middle",
    }),
  );
  svg.append(
    roomy(0, 0, view.yTitle, box.bottom - box.top, {
      class: "muted",
      "text-anchor": "middle",
      transform: `translate(13 ${(box.top + box.bottom) / 2}) rotate(-90)`,
    }),
  );
}

function drawShiftedHull(svg, hull, point, frame) {
  svg.append(
    shape("polygon", {
      points: path(hull, frame),
      class: "shifted-hull dash",
      tip: [`Polytope shifted by ${point.title}`, "same shape, every mixture moved alike"],
      style: `fill:none;stroke:var(${point.look[1]});stroke-width:1.8;stroke-linejoin:round`,
    }),
  );
}

// Where the names of a plane's regions stand: in a corner, or where they cover least.

// A step of the search across and down, in pixels: half a word, a line.
const STEP = [24, 15];

function around({ x, y }, r) {
  return [x - r, y - r, x + r, y + r];
}

function nameRegions(svg, view, frame, node, placed, taken) {
  const total = (frame.right - frame.left) * (frame.top - frame.bottom),
    most = (frame.box.right - frame.box.left) * 0.46;
  view.regions.forEach((region, k) => {
    const polygon = regionPolygon(view, k, frame);
    if (polygon.length < 3 || areaOf(polygon) < 0.02 * total) return;
    const name = className(node.run, region.c),
      titles = [`${name} wins`, name];
    if (region.role === "true") titles.unshift(`${name} wins (true class)`);
    const fitting = titles.filter((title) => textWidth(title, 12, 650) <= most);
    const found = namePlace(
      polygon,
      frame,
      fitting.length ? fitting : titles.slice(-1),
      placed,
      taken,
    );
    if (!found) return; // The caption names the classes.
    placed.push(found.spot);
    svg.append(
      roomy(found.at, found.y, found.title, most, {
        class: "halo bold region-name",
        "text-anchor": found.anchor,
        style: `fill:var(--${region.role}-text)`,
      }),
    );
  });
}

// Within the region, free of marks and terms, in a corner or farther in, else free of marks; a
// shorter title where a longer one has no such place. Else the shortest, in a corner.
function namePlace(polygon, frame, titles, placed, [marks, crowd]) {
  const options = titles.map((title) => placesOf(polygon, frame, title)),
    free = (taken) => (place) => isFree(place.spot, [...placed, ...taken], frame.box),
    within = (place) => holds(polygon, frame, place.spot);
  for (const taken of [crowd, marks])
    for (const { corners, inner } of options) {
      const found = corners.filter(within).find(free(taken)) || inner().find(free(taken));
      if (found) return found;
    }
  const { corners } = options[options.length - 1];
  return [crowd, marks, []].map((taken) => corners.find(free(taken))).find(Boolean);
}

function placesOf(polygon, frame, title) {
  const { box } = frame,
    wide = Math.min((box.right - box.left) * 0.46, textWidth(title, 12, 650)),
    corners = regionCorners(polygon, frame).map(([x, y, anchor]) => {
      const at = Math.min(box.right - 6, Math.max(box.left + 6, x)),
        start = at - { start: 0, middle: wide / 2, end: wide }[anchor];
      return { title, at, y, anchor, spot: [start, y - 11, start + wide, y + 4] };
    });
  return { corners, inner: () => placesWithin(polygon, frame, wide, corners[0]) };
}

// Places within a region, the nearest to its corner first.
function placesWithin(polygon, frame, wide, corner) {
  const { box } = frame,
    found = [];
  for (let top = box.top + 6; top + 15 < box.bottom; top += STEP[1])
    for (let left = box.left + 6; left + wide < box.right; left += STEP[0]) {
      const spot = [left, top, left + wide, top + 15];
      if (holds(polygon, frame, spot))
        found.push({ ...corner, at: left, y: top + 11, anchor: "start", spot });
    }
  const far = ({ spot }) => Math.hypot(spot[0] - corner.spot[0], spot[1] - corner.spot[1]);
  return found.sort((a, b) => far(a) - far(b));
}

// Whether a convex region holds a whole box of the picture.
function holds(polygon, frame, [left, top, right, bottom]) {
  const at = polygon.map((p) => [frame.x(p[0]), frame.y(p[1])]);
  const turns = ([x, y]) =>
    at.map(([ax, ay], j) => {
      const [bx, by] = at[(j + 1) % at.length];
      return (bx - ax) * (y - ay) - (by - ay) * (x - ax);
    });
  const corners = [
    [left, top],
    [right, top],
    [left, bottom],
    [right, bottom],
  ].flatMap(turns);
  return corners.every((turn) => turn >= 0) || corners.every((turn) => turn <= 0);
}

function areaOf(polygon) {
  let twice = 0;
  polygon.forEach((p, j) => {
    const q = polygon[(j + 1) % polygon.length];
    twice += p[0] * q[1] - q[0] * p[1];
  });
  return Math.abs(twice) / 2;
}

// Where a region's name may stand: in the corners of the frame that it holds, else in its middle.
function regionCorners(polygon, frame) {
  const { box } = frame;
  const corners = [
    ["right", "top"],
    ["left", "bottom"],
    ["right", "bottom"],
    ["left", "top"],
  ];
  const held = corners.filter(([side, end]) =>
    polygon.some(
      (p) =>
        Math.abs(p[0] - frame[side]) < 1e-9 * (frame.right - frame.left) &&
        Math.abs(p[1] - frame[end]) < 1e-9 * (frame.top - frame.bottom),
    ),
  );
  if (held.length)
    return held.map(([side, end]) => [
      side === "right" ? box.right - 8 : box.left + 8,
      end === "top" ? box.top + 18 : box.bottom - 8,
      side === "right" ? "end" : "start",
    ]);
  const x = polygon.reduce((sum, p) => sum + p[0], 0) / polygon.length,
    y = polygon.reduce((sum, p) => sum + p[1], 0) / polygon.length;
  return [[frame.x(x), frame.y(y), "middle"]];
}

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
          ...(off ? ["outside the picture; “Fit all” shows it"] : []),
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

// Two classes need no plane: the lead of the true class over the other one, on a line.

const LINE_ROW = 28;

function drawNumberLine(width, node, whatIf, hidden, choice) {
  const c = node.label,
    rival = 1 - c,
    lead = (logits) => logits[c] - logits[rival];
  const points = node.points
    .map((point) => ({
      ...point,
      at: [lead(point.logits), 0],
      look: lookOf(point.key, point.kind, point.place),
    }))
    .filter((point) => !hidden.has(point.key) || point.key === "frozen");
  const shown = shownTerms(node, MOST_VERTICES),
    terms = shown.map((k) => [lead(vertexLogits(node, k)), 0]);
  const range = leadRange(node),
    hull = range.map((value) => [value, 0]);
  const left = Math.min(130, width * 0.3);
  const rows = points.length + (hull.length ? 1 : 0),
    termsTop = 40 + rows * LINE_ROW,
    bottom = termsTop + (terms.length ? 74 : 8);
  const box = { left, right: width - 14, top: 30, bottom };
  const svg = canvas(width, bottom + 42, `Leads of ${titled(node.run, node.id)} on a line`);
  const seen = inSight({ hull, terms, points, shifted: new Map(), zero: [[0, 0]] }, choice.fit);
  const [low, high] = choice.edges || padded(seen.map((p) => p[0]));
  const frame = { ...frameWith(box, low, high, -1, 1), width };
  drawSides(svg, node, frame, c, rival);
  if (hull.length) drawRange(svg, node, range, frame, 40 + points.length * LINE_ROW);
  points.forEach((point, j) => drawLead(svg, node, point, points[0], frame, 40 + j * LINE_ROW));
  shown.forEach((k, j) => svg.append(termDot(node, k, frame, terms[j][0], termsTop, j)));
  if (shown.length)
    svg.append(
      words(left - 8, termsTop + 34, "terms, each alone", {
        class: "small muted",
        "text-anchor": "end",
      }),
    );
  const moving = shape("g", { id: choice.quiet ? null : "what-if-point" });
  svg.append(moving);
  const move = (logits, touched) => {
    const x = Math.min(box.right - 8, Math.max(box.left + 8, frame.x(lead(logits))));
    moving.replaceChildren(
      ...(touched
        ? [
            marker(LOOKS.get("what_if"), x, 40 + LINE_ROW / 2, 8, {
              tip: ["What if", signed(lead(logits), 3)],
            }),
          ]
        : []),
    );
  };
  move(whatIf.logits, whatIf.touched);
  return { svg, move, frame, home: points[0].at };
}

// The smallest and largest lead of all mixtures; nothing where a nonlinear head follows.
function leadRange(node) {
  if (node.run.head) return [];
  const c = node.label,
    value = (k) => contribution(node, k, c) - contribution(node, k, 1 - c);
  let low = node.beta[c] - node.beta[1 - c],
    high = low;
  node.bounds.forEach(([first, last], g) => {
    if (first === last) return;
    let least = Infinity,
      most = -Infinity;
    for (let k = first; k < last; k++) {
      least = Math.min(least, value(k));
      most = Math.max(most, value(k));
    }
    low += node.mass[g] * least;
    high += node.mass[g] * most;
  });
  return [low, high];
}

function drawSides(svg, node, frame, c, rival) {
  const { box } = frame,
    zero = Math.min(box.right, Math.max(box.left, frame.x(0)));
  for (const [from, to, role] of [
    [box.left, zero, "rival"],
    [zero, box.right, "true"],
  ]) {
    if (to - from < 1) continue;
    svg.append(
      shape("rect", {
        x: from,
        y: box.top,
        width: to - from,
        height: box.bottom - box.top,
        class: `region ${role}`,
        style: `fill:var(--${role});fill-opacity:var(--region)`,
      }),
    );
    const own = role === "true",
      brief = `${className(node.run, own ? c : rival)} wins`,
      full = own ? `${brief} (true class)` : brief,
      text = textWidth(full, 12, 650) <= to - from ? full : brief;
    if (to - from > 40)
      svg.append(
        roomy(role === "true" ? to : from, box.top - 8, text, to - from, {
          class: "bold",
          "text-anchor": role === "true" ? "end" : "start",
          style: `fill:var(--${role}-text)`,
        }),
      );
  }
  svg.append(shape("line", { x1: zero, x2: zero, y1: box.top, y2: box.bottom, class: "zero" }));
  for (const tick of ticks(frame.left, frame.right, frame.width < 420 ? 3 : 6))
    svg.append(
      words(frame.x(tick), box.bottom + 15, tickWords(tick), {
        class: "small muted",
        "text-anchor": "middle",
      }),
    );
  svg.append(
    roomy(
      (box.left + box.right) / 2,
      box.bottom + 34,
      `lead of ${className(node.run, c)} over ${className(node.run, rival)} (logits)`,
      box.right - box.left,
      { class: "muted", "text-anchor": "middle" },
    ),
  );
}

function drawRange(svg, node, [low, high], frame, top) {
  const { box } = frame,
    inside = (x) => Math.min(box.right, Math.max(box.left, x));
  svg.append(
    shape("rect", {
      x: inside(frame.x(low)),
      y: top + 6,
      width: Math.max(2, inside(frame.x(high)) - inside(frame.x(low))),
      height: LINE_ROW - 12,
      class: "hull",
      "data-low": low,
      "data-high": high,
      style: "fill:var(--true);fill-opacity:.45;stroke:var(--true)",
      tip: ["All mixtures of the frozen messages", `from ${signed(low, 3)} to ${signed(high, 3)}`],
    }),
    words(box.left - 8, top + 18, "all mixtures", { class: "small", "text-anchor": "end" }),
  );
}

// One prediction on its own row, so that names never overlap.
function drawLead(svg, node, point, frozen, frame, top) {
  const { box } = frame,
    y = top + LINE_ROW / 2,
    x = frame.x(point.at[0]);
  const lines = [
    point.title,
    `predicts ${className(node.run, point.predicted)}`,
    `lead ${signed(point.at[0], 3)}`,
  ];
  svg.append(
    shape("line", { x1: box.left, x2: box.right, y1: y, y2: y, class: "grid" }),
    roomy(box.left - 8, y + 4, point.title, box.left - 10, {
      "text-anchor": "end",
      class: "small",
    }),
  );
  const off = x < box.left || x > box.right,
    at = off ? (x < box.left ? box.left + 10 : box.right - 10) : x,
    start = Math.min(box.right, Math.max(box.left, frame.x(frozen.at[0])));
  if (point !== frozen && Math.abs(at - start) > 20)
    svg.append(arrow(start, y, at, y, arrowColour(point)));
  svg.append(
    marker(point.look, at, y, 7, {
      [off ? "data-off" : "data-point"]: point.key,
      tip: off ? [...lines, "outside the picture; “Fit all” shows it"] : lines,
    }),
  );
  if (off)
    svg.append(
      words(at + (x < box.left ? 14 : -14), y + 4, signed(point.at[0], 1), {
        class: "small halo",
        "text-anchor": x < box.left ? "start" : "end",
      }),
    );
}

function termDot(node, k, frame, value, top, j) {
  const x = frame.x(value),
    share = node.alpha[k] / node.mass[node.group[k]];
  const role = rolesOf(node)(node.run.labels[sourceOf(node, k)]);
  return shape("circle", {
    cx: x.toFixed(2),
    cy: (top + 14 + ((j * 7) % 46)).toFixed(2),
    r: (2.4 + 5 * Math.sqrt(share)).toFixed(2),
    "data-term": k,
    visibility: x < frame.box.left || x > frame.box.right ? "hidden" : null,
    class: `vertex ${role}${node.witness[k] > ACTIVE ? " used" : ""}`,
    tip: () => termLines(node, k),
  });
}
