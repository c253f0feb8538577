// Two classes need no plane: the lead of the true class over the other one, on a line.

const LINE_ROW = 28;

function drawNumberLine(width, node, whatIf, hidden, choice) {
  const c = node.label,
    rival = 1 - c,
    lead = (logits) => logits[c] - logits[rival];
  const points = node.points
    .map((point, j) => ({
      ...point,
      at: [lead(point.logits), 0],
      look: lookOf(point.key, point.kind, j - 2),
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
    const x = frame.x(lead(logits));
    moving.replaceChildren(
      ...(touched && x >= box.left && x <= box.right
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

// The smallest and largest lead of all mixtures; nothing where a tail follows.
function leadRange(node) {
  if (node.run.tail) return [];
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
      tip: off ? [...lines, "outside the picture; “fit all” shows it"] : lines,
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
