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
