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
    `${node.run.tail ? "Predictions" : "Evidence polytope"} of ${titled(node.run, node.id)}`,
  );
  const hull = polytopeHull(node, view);
  const points = node.points
    .map((point, j) => ({
      ...point,
      at: positionIn(view, point.logits),
      look: lookOf(point.key, point.kind, j - 2),
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
