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
