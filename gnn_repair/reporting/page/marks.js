// What is drawn inside the polytope: terms, points of logit space and their labels.

// Terms as dots, sized by share of their group's mass, coloured by the source's class.
function drawVertices(svg, node, view, frame) {
  const roleOf = rolesOf(node),
    shown = shownTerms(node, MOST_VERTICES),
    C = node.run.classCount,
    table = node.run.contributions;
  const home = positionIn(view, node.frozen),
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
      used = node.witness[k] > ACTIVE;
    svg.append(
      shape("circle", {
        cx: frame.x(at[0]).toFixed(2),
        cy: frame.y(at[1]).toFixed(2),
        r: (2.4 + 5 * Math.sqrt(share)).toFixed(2),
        "data-term": k,
        class: `vertex ${roleOf(label)}${used ? " used" : ""}`,
        tip: () => termLines(node, k),
      }),
    );
  }
}

function termLines(node, k) {
  const { run } = node,
    source = sourceOf(node, k),
    group = run.groups[node.group[k]];
  const lines = [
    (source === node.id ? "itself" : `node ${nodeName(run, source)}`) +
      (run.groupCount > 1 ? `, ${group}` : ""),
    `class ${className(run, run.labels[source])}, ` +
      `predicted ${className(run, run.predictions[source])}`,
  ];
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

function drawPoints(svg, points, frame, node) {
  const from = points[0].at,
    placed = [],
    labels = [];
  for (const point of points.slice(1)) {
    const long = Math.hypot(
      frame.x(point.at[0]) - frame.x(from[0]),
      frame.y(point.at[1]) - frame.y(from[1]),
    );
    if (long > 14)
      svg.append(
        arrow(
          frame.x(from[0]),
          frame.y(from[1]),
          frame.x(point.at[0]),
          frame.y(point.at[1]),
          point.key === "oracle" ? "--oracle-edge" : point.look[1],
        ),
      );
  }
  for (const point of [...points].reverse()) {
    const x = frame.x(point.at[0]),
      y = frame.y(point.at[1]);
    placed.push([x - 8, y - 8, x + 8, y + 8]);
    svg.append(
      marker(point.look, x, y, 7.5, {
        "data-point": point.key,
        tip: [
          point.title,
          `predicts ${className(node.run, point.predicted)}`,
          `margin of ${className(node.run, node.label)}: ${signed(point.margin, 3)}`,
        ],
      }),
    );
  }
  for (const point of points)
    labels.push(
      freeLabel(
        point.title.toLowerCase(),
        frame.x(point.at[0]),
        frame.y(point.at[1]),
        placed,
        frame.box,
      ),
    );
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

// A label beside a marker at the first of a few places that is free.
function freeLabel(text, x, y, placed, box) {
  const wide = 6.6 * text.length,
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
    ];
  const spot = (dx, dy) => [x + dx, y + dy - 10, x + dx + wide, y + dy + 3];
  const free = ([l, t, r, b]) =>
    l > box.left &&
    r < box.right &&
    t > box.top &&
    b < box.bottom &&
    !placed.some((p) => l < p[2] && r > p[0] && t < p[3] && b > p[1]);
  const found = tries.find(([dx, dy]) => free(spot(dx, dy)));
  if (!found) return null; // The list beside the plane names every marker.
  const [dx, dy] = found;
  placed.push(spot(dx, dy));
  return words(x + dx, y + dy, text, { class: "bold halo", style: "pointer-events:none" });
}
