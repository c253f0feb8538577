// The plane a polytope is drawn in: two directions in logit space, and moving about in it.

// The plane a polytope is drawn in: two directions in logit space, hulls, and class regions.
//
// A view is {x, y, regions, xTitle, yTitle, equal, note}: a logit vector z is drawn at (x·z, y·z),
// and region k of the plane is where its affine function a·px + b·py + c is largest.

function scalarProduct(a, b) {
  let sum = 0;
  for (let j = 0; j < a.length; j++) sum += a[j] * b[j];
  return sum;
}

function difference(length, c, r) {
  const direction = new Float64Array(length);
  direction[c] += 1;
  direction[r] -= 1;
  return direction;
}

// Across: margin over one rival. Up: margin over another. The true class wins where both are
// positive; the two rivals part along the diagonal.
function marginView(node, one, two) {
  const c = node.label,
    C = node.run.classCount,
    name = (r) => className(node.run, r);
  const regions = [
    { c, role: "true", a: 0, b: 0, c0: 0 },
    { c: one, role: "rival", a: -1, b: 0, c0: 0 },
    { c: two, role: "rival-two", a: 0, b: -1, c0: 0 },
  ];
  return {
    x: difference(C, c, one),
    y: difference(C, c, two),
    regions,
    xTitle: `margin over ${name(one)} (logits)`,
    yTitle: `margin over ${name(two)} (logits)`,
    equal: false,
    note:
      `Across: lead of ${name(c)} over ${name(one)}. Up: its lead over ${name(two)}. ` +
      "Regions compare these three classes.",
  };
}

// Equal angles: the plane of three classes, seen without distortion.
function threeClassView(node, one, two) {
  const c = node.label,
    C = node.run.classCount;
  const x = new Float64Array(C),
    y = new Float64Array(C);
  y[c] = Math.sqrt(2 / 3);
  y[one] = -Math.sqrt(1 / 6);
  y[two] = -Math.sqrt(1 / 6);
  x[one] = -Math.SQRT1_2;
  x[two] = Math.SQRT1_2;
  const roles = [
    [c, "true"],
    [one, "rival"],
    [two, "rival-two"],
  ];
  return {
    x,
    y,
    equal: true,
    xTitle: "← rival one · rival two → (logits)",
    yTitle: "true class ↑ (logits)",
    regions: roles.map(([k, role]) => ({ c: k, role, a: x[k], b: y[k], c0: 0 })),
    note:
      "The plane of three classes without distortion: lengths and angles are those of logit " +
      "space. Regions compare these three classes.",
  };
}

// The two directions along which the terms spread most, after centring each logit vector.
function spreadView(node) {
  const C = node.run.classCount,
    samples = node.points.map((point) => Float64Array.from(centred(point.logits)));
  for (let k = 0; k < node.count; k++)
    samples.push(Float64Array.from(centred(vertexLogits(node, k))));
  const [x, y] = leadingDirections(samples, C);
  const z = centred(node.frozen),
    px = scalarProduct(x, z),
    py = scalarProduct(y, z);
  const ranked = node.points.flatMap((point) => [point.predicted, point.rival]);
  const near = new Set([node.label, ...ranked]);
  const others = Array.from({ length: C }, (_, k) => k);
  const roleOf = rolesOf(node);
  return {
    x,
    y,
    equal: true,
    xTitle: "first principal direction (logits)",
    yTitle: "second principal direction (logits)",
    regions: others.map((k) => ({
      c: k,
      role: roleOf(k),
      a: x[k],
      b: y[k],
      c0: z[k] - x[k] * px - y[k] * py,
      near: near.has(k),
    })),
    note:
      "The two directions in which the terms spread most. Regions are those of all classes in " +
      "the slice through the frozen point; points off the slice may differ.",
  };
}

function leadingDirections(samples, C) {
  const mean = new Float64Array(C),
    spread = Array.from({ length: C }, () => new Float64Array(C));
  for (const s of samples) for (let j = 0; j < C; j++) mean[j] += s[j] / samples.length;
  for (const s of samples) {
    for (let j = 0; j < C; j++)
      for (let l = 0; l < C; l++) spread[j][l] += (s[j] - mean[j]) * (s[l] - mean[l]);
  }
  const found = [];
  for (let d = 0; d < 2; d++) {
    let v = Float64Array.from({ length: C }, (_, j) => Math.cos(1 + 2.3 * j + d));
    for (let step = 0; step < 60; step++) {
      let next = Float64Array.from(spread, (row) => scalarProduct(row, v));
      // Where there is no spread left, any direction orthogonal to the others will do.
      if (scalarProduct(next, next) < 1e-24) next = v;
      v = orthonormal(next, [...found, new Float64Array(C).fill(1 / Math.sqrt(C))]);
    }
    found.push(v);
  }
  return found;
}

function orthonormal(v, others) {
  const made = Float64Array.from(v);
  for (const other of others) {
    const part = scalarProduct(made, other);
    for (let j = 0; j < made.length; j++) made[j] -= part * other[j];
  }
  const length = Math.sqrt(scalarProduct(made, made));
  return length > 1e-15 ? made.map((value) => value / length) : made;
}

// z with all of a group's mass on term k and every other group as frozen.
function vertexLogits(node, k) {
  if (node.alone)
    return Float64Array.from(
      node.alone.subarray(k * node.run.classCount, (k + 1) * node.run.classCount),
    );
  const g = node.group[k],
    C = node.run.classCount,
    logits = Float64Array.from(node.frozen);
  const centre = groupMixture(node, g);
  for (let c = 0; c < C; c++) logits[c] += node.mass[g] * contribution(node, k, c) - centre[c];
  return logits;
}

// Σ α ℓ over one group, kept on the node.
function groupMixture(node, g) {
  node.mixtures ||= [];
  if (!node.mixtures[g]) {
    const mixture = new Float64Array(node.run.classCount),
      [low, high] = node.bounds[g];
    for (let k = low; k < high; k++)
      for (let c = 0; c < mixture.length; c++)
        mixture[c] += node.alpha[k] * contribution(node, k, c);
    node.mixtures[g] = mixture;
  }
  return node.mixtures[g];
}

// Hulls --------------------------------------------------------------------------------------

// Convex hull, counterclockwise, by Andrew's monotone chain.
function convexHull(points) {
  const sorted = [...points].sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  if (sorted.length < 3) return sorted;
  const turn = (o, a, b) => (a[0] - o[0]) * (b[1] - o[1]) - (a[1] - o[1]) * (b[0] - o[0]);
  const chain = (list) => {
    const kept = [];
    for (const p of list) {
      while (kept.length > 1 && turn(kept[kept.length - 2], kept[kept.length - 1], p) <= 0)
        kept.pop();
      kept.push(p);
    }
    kept.pop();
    return kept;
  };
  return [...chain(sorted), ...chain(sorted.reverse())];
}

// The projected polytope β + Σ_g m_g conv{ℓ_a}: the sum of the groups' hulls.
function polytopeHull(node, view) {
  if (node.run.head) return []; // Logits of a nonlinear head are no polytope.
  let hull = [[scalarProduct(view.x, node.beta), scalarProduct(view.y, node.beta)]];
  node.bounds.forEach(([low, high], g) => {
    if (low === high) return;
    const points = [],
      C = node.run.classCount,
      table = node.run.contributions;
    for (let k = low; k < high; k++) {
      let px = 0,
        py = 0;
      for (let c = 0, row = node.rows[k] * C; c < C; c++) {
        px += view.x[c] * table[row + c];
        py += view.y[c] * table[row + c];
      }
      points.push([node.mass[g] * px, node.mass[g] * py]);
    }
    const part = convexHull(points);
    hull = convexHull(hull.flatMap((p) => part.map((q) => [p[0] + q[0], p[1] + q[1]])));
  });
  return hull;
}

// Part of the rectangle where region k's function is the largest: half-plane clipping.
function regionPolygon(view, k, box) {
  let polygon = [
    [box.left, box.bottom],
    [box.right, box.bottom],
    [box.right, box.top],
    [box.left, box.top],
  ];
  const own = view.regions[k];
  view.regions.forEach((other, j) => {
    if (j === k || !polygon.length) return;
    const lead = (p) => (own.a - other.a) * p[0] + (own.b - other.b) * p[1] + own.c0 - other.c0;
    polygon = clip(polygon, lead);
  });
  return polygon;
}

function clip(polygon, lead) {
  const kept = [];
  polygon.forEach((p, j) => {
    const q = polygon[(j + 1) % polygon.length],
      here = lead(p),
      there = lead(q);
    if (here >= 0) kept.push(p);
    if (here >= 0 !== there >= 0) {
      const t = here / (here - there);
      kept.push([p[0] + t * (q[0] - p[0]), p[1] + t * (q[1] - p[1])]);
    }
  });
  return kept;
}

// Which classes get a colour: the true one, the strongest rival of the frozen point, and the rival
// that holds the oracle back (or the next strongest).
function rolesOf(node) {
  const [one, two] = rivalsOf(node);
  return (c) =>
    c === node.label ? "true" : c === one ? "rival" : c === two ? "rival-two" : "other";
}

function rivalsOf(node) {
  if (node.rivals) return node.rivals;
  const order = Array.from(node.frozen.keys())
    .filter((r) => r !== node.label)
    .sort((a, b) => node.frozen[b] - node.frozen[a]);
  const oracle = node.points.find((point) => point.key === "oracle");
  const held = Array.from(node.weights.keys())
    .filter((r) => node.weights[r] > 0 && r !== order[0])
    .sort((a, b) => node.weights[b] - node.weights[a]);
  const two = held[0] ?? (oracle && oracle.rival !== order[0] ? oracle.rival : order[1]);
  node.rivals = [order[0], two ?? order[0]];
  return node.rivals;
}

// Which part of the plane is in the picture, and moving about in it.

// A prediction this many times farther out than the rest is spanned is named at the edge instead.
const FAR = 3;
// Predictions closer together than this share of the picture are a blob.
const BLOB = 0.04;

function padded(values, share = 0.09) {
  let low = Infinity,
    high = -Infinity;
  for (const v of values) {
    if (v < low) low = v;
    if (v > high) high = v;
  }
  const pad = share * (high - low) || 0.5;
  return [low - pad, high + pad];
}

function spans(points) {
  return [0, 1].map((d) => {
    const [low, high] = padded(
      points.map((p) => p[d]),
      0,
    );
    return points.length > 1 ? high - low : 0;
  });
}

// Points that belong into the picture: `core` always; each of `others` ([[at, …], …], a prediction
// and what moves with it) from near to far, until one would shrink the rest to a corner.
function gathered(core, others) {
  const seen = [...core],
    centre = core[0];
  const far = (group) => Math.hypot(group[0][0] - centre[0], group[0][1] - centre[1]);
  for (const group of [...others].sort((a, b) => far(a) - far(b))) {
    const before = spans(seen),
      after = spans([...seen, ...group]);
    const grows = after.some((size, d) => size > FAR * Math.max(before[d], 0.2 * before[1 - d]));
    if (grows && Math.max(...before) > 0) continue;
    seen.push(...group);
  }
  return seen;
}

function isBlob(points, seen) {
  const [wide, high] = spans(points),
    [whole, tall] = spans(seen);
  return wide < BLOB * whole && high <= BLOB * tall;
}

// The points that must be in sight: all, the predictions alone, or what is sensible at first.
function inSight({ hull, terms, points, shifted, zero }, fit) {
  const frozen = points[0].at,
    oracle = points.filter((point) => point.key === "oracle").map((point) => point.at);
  const repairs = points.filter((point) => point.key !== "oracle").map((point) => point.at);
  const groups = points
    .filter((point) => point.key !== "oracle" && point.key !== "frozen")
    .map((point) => [point.at].concat(shifted.get(point.key) || []));
  const core = [frozen, ...hull, ...(hull.length ? [] : terms), ...oracle, ...zero];
  if (fit === "all") return [...core, ...groups.flat()];
  if (fit === "repairs") return repairs;
  const seen = gathered(core, groups);
  return repairs.length > 1 && isBlob(repairs, seen) ? repairs : seen;
}

function frameWith(box, left, right, bottom, top) {
  const x = scale(left, right, box.left, box.right);
  const y = scale(bottom, top, box.bottom, box.top);
  return { box, left, right, bottom, top, x, y };
}

// The frame around `seen`; with `equal` a unit is as long upwards as across.
function frameAround(seen, box, equal) {
  let [left, right] = padded(seen.map((p) => p[0])),
    [bottom, top] = padded(seen.map((p) => p[1]));
  if (equal) {
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

// The same picture `by` times closer around a point of the plane.
function closer(frame, by, [px, py]) {
  const at = (edge, centre) => centre + (edge - centre) / by;
  return [at(frame.left, px), at(frame.right, px), at(frame.bottom, py), at(frame.top, py)];
}
function moved(frame, across, up) {
  const dx = across * (frame.right - frame.left),
    dy = up * (frame.top - frame.bottom);
  return [frame.left + dx, frame.right + dx, frame.bottom + dy, frame.top + dy];
}

// Wheel, pinch, drag and keys on the picture. `get()` gives the frame that is drawn and the frozen
// point; `set(edges)` draws another, `set(null, fit)` fits it.
function navigatePlane(get, set) {
  const box = byId("plane"),
    fingers = new Map();
  let scrolled = -Infinity,
    from = null;
  window.addEventListener("scroll", (event) => (scrolled = event.timeStamp), { passive: true });

  const placeOf = (event, frame) => {
    const area = box.getBoundingClientRect(),
      ratio = frame.width / area.width;
    const part = (at, low, high) => (at - low) / (high - low);
    const across = part((event.clientX - area.left) * ratio, frame.box.left, frame.box.right),
      up = part((event.clientY - area.top) * ratio, frame.box.bottom, frame.box.top);
    return [
      frame.left + across * (frame.right - frame.left),
      frame.bottom + up * (frame.top - frame.bottom),
    ];
  };
  const spread = () => {
    const [a, b] = [...fingers.values()];
    return Math.hypot(a.clientX - b.clientX, a.clientY - b.clientY) || 1;
  };

  box.addEventListener(
    "wheel",
    (event) => {
      // A page that is being scrolled past the picture goes on scrolling.
      if (!event.ctrlKey && event.timeStamp - scrolled < 250) return;
      const { frame } = get();
      if (!frame) return;
      event.preventDefault();
      set(
        closer(frame, Math.exp(-event.deltaY / (event.ctrlKey ? 120 : 400)), placeOf(event, frame)),
      );
    },
    { passive: false },
  );
  box.addEventListener("pointerdown", (event) => {
    fingers.set(event.pointerId, event);
    const { frame } = get();
    if (frame && fingers.size < 3) from = { event, frame, wide: fingers.size === 2 ? spread() : 0 };
  });
  box.addEventListener("pointermove", (event) => {
    if (!fingers.has(event.pointerId) || !from) return;
    fingers.set(event.pointerId, event);
    const area = box.getBoundingClientRect(),
      inner = from.frame.box;
    if (fingers.size === 2) {
      set(closer(from.frame, spread() / from.wide, placeOf(from.event, from.frame)));
    } else if (event.pointerType === "mouse" && event.buttons) {
      const ratio = from.frame.width / area.width;
      set(
        moved(
          from.frame,
          (-(event.clientX - from.event.clientX) * ratio) / (inner.right - inner.left),
          ((event.clientY - from.event.clientY) * ratio) / (inner.bottom - inner.top),
        ),
      );
    }
  });
  for (const end of ["pointerup", "pointercancel", "pointerleave"])
    box.addEventListener(end, (event) => {
      fingers.delete(event.pointerId);
      from = null;
    });
  const steps = {
    ArrowLeft: [-0.1, 0],
    ArrowRight: [0.1, 0],
    ArrowUp: [0, 0.1],
    ArrowDown: [0, -0.1],
  };
  const zoom = (by) => {
    const { frame, home } = get();
    if (!frame) return;
    const inside =
      home[0] >= frame.left &&
      home[0] <= frame.right &&
      home[1] >= frame.bottom &&
      home[1] <= frame.top;
    const centre = [(frame.left + frame.right) / 2, (frame.bottom + frame.top) / 2];
    set(closer(frame, by, inside ? home : centre));
  };
  box.addEventListener("keydown", (event) => {
    const { frame } = get();
    if (!frame || event.ctrlKey || event.metaKey || event.altKey) return;
    if (steps[event.key]) set(moved(frame, ...steps[event.key]));
    else if (event.key === "+" || event.key === "=") zoom(2);
    else if (event.key === "-") zoom(0.5);
    else if (event.key === "0") set(null, "all");
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  byId("closer").addEventListener("click", () => zoom(2));
  byId("farther").addEventListener("click", () => zoom(0.5));
  byId("fit").addEventListener("click", () => set(null, "all"));
  byId("fit-repairs").addEventListener("click", () => set(null, "repairs"));
}
