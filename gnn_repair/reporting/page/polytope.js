// Drawing the evidence polytope of a node.

const MOST_VERTICES = 400;

function viewOf(node, kind, one, two) {
  if (node.run.classCount === 2) return marginView(node, one, one);
  if (kind === "spread") return spreadView(node);
  return kind === "three" ? threeClassView(node, one, two) : marginView(node, one, two);
}

function drawPolytope(width, height, node, view, whatIf, hidden, zoom) {
  const svg = canvas(
    width,
    height,
    `${node.run.tail ? "Predictions" : "Evidence polytope"} of node ${nodeName(node.run, node.id)}`,
  );
  const hull = polytopeHull(node, view);
  const points = node.points
    .map((point, j) => ({
      ...point,
      at: positionIn(view, point.logits),
      look: lookOf(point.key, point.kind, j - 2),
    }))
    .filter((point) => !hidden.has(point.key) || point.key === "frozen");
  const shifts = points
    .filter((point) => hull.length && point.kind === "shift" && !NODE_ONLY.has(point.key))
    .slice(0, 1);
  const frame = zoomed(
    frameOf(hull, points, shifts, node, view, width, height),
    zoom,
    points[0].at,
  );
  const inside = shape("g", { "clip-path": "url(#plane-clip)" });
  svg.append(
    shape(
      "clipPath",
      { id: "plane-clip" },
      shape("rect", {
        x: frame.box.left,
        y: frame.box.top,
        width: frame.box.right - frame.box.left,
        height: frame.box.bottom - frame.box.top,
      }),
    ),
  );
  drawRegions(svg, view, frame, node);
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
  for (const point of shifts) drawShiftedHull(inside, hull, point, node, view, frame);
  drawVertices(inside, node, view, frame);
  drawPoints(inside, points, frame, node);
  const moving = shape("g", { id: "what-if-point" });
  inside.append(moving);
  const move = (logits, shown) => {
    moving.replaceChildren();
    if (!shown) return;
    const at = positionIn(view, logits);
    moving.append(
      marker(LOOKS.get("what_if"), frame.x(at[0]), frame.y(at[1]), 8, {
        tip: ["What if", "the mixture set with the sliders"],
      }),
    );
    moving.append(
      words(frame.x(at[0]) + 13, frame.y(at[1]) + 4, "what if", {
        class: "bold halo",
        style: "fill:var(--what-if)",
      }),
    );
  };
  move(whatIf.logits, whatIf.touched);
  return { svg, move, frame };
}

function positionIn(view, logits) {
  return [scalarProduct(view.x, logits), scalarProduct(view.y, logits)];
}
function path(points, frame) {
  return points.map((p) => `${frame.x(p[0]).toFixed(2)},${frame.y(p[1]).toFixed(2)}`).join(" ");
}

// What must be in the picture: the hull, every point, the shifted hull and the boundary.
function frameOf(hull, points, shifts, node, view, width, height) {
  const seen = [...hull, ...points.map((point) => point.at)];
  if (!hull.length)
    for (const k of shownTerms(node, MOST_VERTICES))
      seen.push(positionIn(view, vertexLogits(node, k)));
  const frozen = points[0].at;
  for (const { at } of shifts)
    for (const p of hull) seen.push([p[0] + at[0] - frozen[0], p[1] + at[1] - frozen[1]]);
  if (view.regions.length === 3) seen.push([0, 0]);
  const box = { left: 54, right: width - 14, top: 14, bottom: height - 42 };
  let [left, right] = padded(seen.map((p) => p[0])),
    [bottom, top] = padded(seen.map((p) => p[1]));
  if (node.run.classCount === 2) [bottom, top] = [-1, 1];
  if (view.equal) {
    const unit = Math.max(
      (right - left) / (box.right - box.left),
      (top - bottom) / (box.bottom - box.top),
    );
    const addX = (unit * (box.right - box.left) - (right - left)) / 2,
      addY = (unit * (box.bottom - box.top) - (top - bottom)) / 2;
    left -= addX;
    right += addX;
    bottom -= addY;
    top += addY;
  }
  return frameWith(box, left, right, bottom, top);
}

function frameWith(box, left, right, bottom, top) {
  const x = scale(left, right, box.left, box.right);
  const y = scale(bottom, top, box.bottom, box.top);
  return { box, left, right, bottom, top, x, y };
}

// The frame around the frozen point, `zoom.by` times closer and moved by `zoom.across`, `zoom.up`
// frame widths.
function zoomed(frame, zoom, centre) {
  if (zoom.by === 1 && !zoom.across && !zoom.up) return frame;
  const wide = (frame.right - frame.left) / zoom.by,
    high = (frame.top - frame.bottom) / zoom.by;
  const t = 1 - 1 / zoom.by;
  const x = ((1 - t) * (frame.left + frame.right)) / 2 + t * centre[0] + zoom.across * wide;
  const y = ((1 - t) * (frame.bottom + frame.top)) / 2 + t * centre[1] + zoom.up * high;
  return frameWith(frame.box, x - wide / 2, x + wide / 2, y - high / 2, y + high / 2);
}

function padded(values) {
  let low = Infinity,
    high = -Infinity;
  for (const v of values) {
    if (v < low) low = v;
    if (v > high) high = v;
  }
  const pad = 0.09 * (high - low) || 0.5;
  return [low - pad, high + pad];
}

function drawRegions(svg, view, frame, node) {
  const total = (frame.right - frame.left) * (frame.top - frame.bottom);
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
    if (areaOf(polygon) < 0.02 * total) return;
    const { box } = frame,
      [x, y, anchor] = regionCorner(polygon, frame);
    const title =
      region.role === "true"
        ? `${className(node.run, region.c)} wins (true class)`
        : `${className(node.run, region.c)} wins`;
    svg.append(
      words(
        Math.min(box.right - 6, Math.max(box.left + 6, x)),
        y,
        shorten(title, (box.right - box.left) * 0.45),
        {
          class: "halo bold",
          "text-anchor": anchor,
          style: `fill:var(--${region.role})`,
        },
      ),
    );
  });
}

function areaOf(polygon) {
  let twice = 0;
  polygon.forEach((p, j) => {
    const q = polygon[(j + 1) % polygon.length];
    twice += p[0] * q[1] - q[0] * p[1];
  });
  return Math.abs(twice) / 2;
}

// The corner of a region that lies nearest a corner of the frame carries its name.
function regionCorner(polygon, frame) {
  const { box } = frame;
  const corners = [
    ["right", "top"],
    ["left", "bottom"],
    ["right", "bottom"],
    ["left", "top"],
  ];
  for (const [side, end] of corners) {
    const held = polygon.some(
      (p) =>
        Math.abs(p[0] - frame[side]) < 1e-9 * (frame.right - frame.left) &&
        Math.abs(p[1] - frame[end]) < 1e-9 * (frame.top - frame.bottom),
    );
    if (held)
      return [
        side === "right" ? box.right - 8 : box.left + 8,
        end === "top" ? box.top + 18 : box.bottom - 8,
        side === "right" ? "end" : "start",
      ];
  }
  const x = polygon.reduce((sum, p) => sum + p[0], 0) / polygon.length,
    y = polygon.reduce((sum, p) => sum + p[1], 0) / polygon.length;
  return [frame.x(x), frame.y(y), "middle"];
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
    words((box.left + box.right) / 2, box.bottom + 34, shorten(view.xTitle, box.right - box.left), {
      class: "muted",
      "text-anchor": "middle",
    }),
  );
  svg.append(
    words(0, 0, shorten(view.yTitle, box.bottom - box.top), {
      class: "muted",
      "text-anchor": "middle",
      transform: `translate(13 ${(box.top + box.bottom) / 2}) rotate(-90)`,
    }),
  );
}

function drawShiftedHull(svg, hull, point, node, view, frame) {
  const frozen = positionIn(view, node.frozen);
  const moved = hull.map((p) => [p[0] + point.at[0] - frozen[0], p[1] + point.at[1] - frozen[1]]);
  svg.append(
    shape("polygon", {
      points: path(moved, frame),
      class: "shifted-hull dash",
      tip: [`Polytope shifted by ${point.title}`, "same shape, every mixture moved alike"],
      style: `fill:none;stroke:var(${point.look[1]});stroke-width:1.8;stroke-linejoin:round`,
    }),
  );
}
