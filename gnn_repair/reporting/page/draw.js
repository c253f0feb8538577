// Small drawing vocabulary: elements, numbers, scales, markers.
// Every word that comes from data goes through textContent, never through markup.

const SVG = "http://www.w3.org/2000/svg";
function byId(id) {
  return document.getElementById(id);
}

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  return furnish(made, attributes, children);
}

function shape(tag, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, tag);
  return furnish(made, attributes, children);
}

function furnish(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "tip") made.tip = value;
    else if (name === "go") leadTo(made, value);
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

// A mark that shows its nodes when it is chosen, by mouse, touch or key.
function leadTo(made, filters) {
  made.go = filters;
  made.classList.add("go");
  made.setAttribute("role", "button");
  made.setAttribute("tabindex", "-1");
}

function words(x, y, text, attributes = {}) {
  const made = shape("text", { x, y, ...attributes });
  made.textContent = text;
  return made;
}

function canvas(width, height, title) {
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, role: "group" });
  // Not a <title>: the native tooltip would cover the hover card.
  svg.setAttribute("aria-label", title);
  return svg;
}

function fill(select, options, chosen) {
  select.replaceChildren(
    ...options.map(([value, text]) => {
      const option = element("option", { value });
      option.textContent = text;
      return option;
    }),
  );
  if (chosen !== undefined) select.value = chosen;
}

// Numbers ------------------------------------------------------------------------------------

function figure(value, digits = 3) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  // What would be rounded to nothing, or fill a line, is written with its power of ten.
  if (size !== 0 && (size < 0.5 * 10 ** -digits || size >= 1e6))
    return minus(value.toExponential(1));
  return minus(value.toFixed(size >= 1000 ? 0 : digits));
}
function signed(value, digits = 2) {
  return (value > 0 ? "+" : "") + figure(value, digits);
}
// Rounded, but never to all or to none where that is not so (beyond what float32 blurs).
function percent(share, digits = 1) {
  if (!Number.isFinite(share)) return "–";
  const text = (100 * share).toFixed(digits),
    last = 10 ** -digits;
  if (share > 1e-6 && Number(text) === 0) return `<${last} %`;
  if (share < 1 - 1e-6 && Number(text) === 100) return `>${100 - last} %`;
  return `${text} %`;
}
function minus(text) {
  return text.replaceAll("-", "−");
}
function count(value) {
  return value.toLocaleString("en");
}

// Scales -------------------------------------------------------------------------------------

function scale(low, high, from, to) {
  const span = high - low || 1;
  return (value) => from + ((value - low) / span) * (to - from);
}

function ticks(low, high, wanted = 5) {
  const raw = (high - low) / wanted || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].find((unit) => unit * power >= raw) * power;
  // Counted from the first: beyond 2^53 a number plus one is the same number, and no loop ends.
  const first = Math.ceil(low / step),
    more = Math.floor(high / step + 1e-9) - first;
  return Array.from({ length: Math.max(0, Math.min(100, more) + 1) }, (_, j) => (first + j) * step);
}
function tickWords(value) {
  return minus(String(Number(value.toPrecision(8))));
}

const RULER = document.createElement("canvas").getContext("2d");
const RULED = new Map();
// Width in pixels of a text of the pictures; measured once.
function textWidth(text, size = 12, weight = 400) {
  const key = `${size} ${weight} ${text}`;
  if (!RULED.has(key)) {
    RULER.font = `${weight} ${size}px ${getComputedStyle(document.body).fontFamily}`;
    RULED.set(key, RULER.measureText(text).width);
  }
  return RULED.get(key);
}

// What a reader takes for one letter is never cut: a family of four is seven characters.
const SEGMENTS = typeof Intl.Segmenter === "function" ? new Intl.Segmenter() : null;
function lettersOf(text) {
  return SEGMENTS ? Array.from(SEGMENTS.segment(text), (part) => part.segment) : Array.from(text);
}

// Text cut to `room` pixels, in the middle: names that begin alike often end differently.
function shorten(text, room, size = 12, weight = 400) {
  if (textWidth(text, size, weight) <= room) return text;
  const letters = lettersOf(text),
    cut = (most) => {
      const end = Math.floor(most / 3);
      const [first, last] = [letters.slice(0, most - end), letters.slice(letters.length - end)];
      return [...first, "…", ...last].join("");
    };
  let low = 1,
    high = Math.max(1, letters.length - 1);
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (textWidth(cut(middle), size, weight) <= room) low = middle;
    else high = middle - 1;
  }
  return cut(low);
}

// Words cut to `room` pixels; what was cut can be read in the hover card.
function roomy(x, y, text, room, attributes = {}) {
  const small = /\bsmall\b/.test(attributes.class || ""),
    bold = /\bbold\b/.test(attributes.class || "");
  const brief = shorten(text, room, small ? 11 : 12, bold ? 650 : 400);
  return words(x, y, brief, brief === text ? attributes : { tip: [text], ...attributes });
}

// Markers ------------------------------------------------------------------------------------

// A map, not an object: names are the user's, and every object has a "constructor".
const LOOKS = new Map([
  ["frozen", ["circle", "--frozen"]],
  ["oracle", ["star", "--oracle"]],
  ["nearest", ["cross", "--nearest"]],
  ["what_if", ["ring", "--what-if"]],
]);
const SPARE_LOOKS = [
  ["diamond", "--reweighted"],
  ["triangle", "--shifted"],
  ["square", "--extra"],
  ["pentagon", "--node-shifted"],
  ["square", "--refit"],
];

// Declared methods that do not read the message set.
const NODE_ONLY = new Set();

// Every declared method brings its marker and its two colours along, which become variables.
function takeLooks(looks) {
  const rules = { light: [], dark: [] };
  Object.entries(looks).forEach(([key, look], j) => {
    LOOKS.set(key, [look.marker, `--method-${j}`]);
    if (!look.message_set) NODE_ONLY.add(key);
    rules.light.push(`--method-${j}: ${look.colour};`);
    rules.dark.push(`--method-${j}: ${look.dark};`);
  });
  const style = document.createElement("style");
  const [light, dark] = [rules.light.join(" "), rules.dark.join(" ")];
  style.textContent = `:root { ${light} } :root[data-theme="dark"] { ${dark} }`;
  document.head.append(style);
}

// A repair of one's own takes a spare look, by its kind and place.
function lookOf(key, kind, place = 0) {
  if (LOOKS.has(key)) return LOOKS.get(key);
  if (kind === "coefficients") return SPARE_LOOKS[0];
  if (kind === "shift" && place === 0) return SPARE_LOOKS[1];
  return SPARE_LOOKS[2 + (place % 3)];
}

function markerPath(form, x, y, r) {
  const at = (angle, radius) =>
    `${(x + radius * Math.sin(angle)).toFixed(2)},${(y - radius * Math.cos(angle)).toFixed(2)}`;
  const ring = (corners, turn, inner) => {
    const points = [];
    for (let j = 0; j < corners; j++) {
      points.push(at(turn + (2 * Math.PI * j) / corners, r * 1.25));
      if (inner) points.push(at(turn + (2 * Math.PI * (j + 0.5)) / corners, r * inner));
    }
    return `M${points.join("L")}Z`;
  };
  if (form === "cross") return crossPath(x, y, r);
  if (form === "star") return ring(5, 0, 0.55);
  if (form === "diamond") return ring(4, 0);
  if (form === "square") return ring(4, Math.PI / 4);
  if (form === "pentagon") return ring(5, 0);
  if (form === "triangle") return ring(3, 0);
  if (form === "flipped") return ring(3, Math.PI);
  return `M${x - r},${y}a${r},${r} 0 1,0 ${2 * r},0a${r},${r} 0 1,0 ${-2 * r},0Z`;
}

function crossPath(x, y, r) {
  const [a, b] = [0.95 * r, 0.42 * r];
  const corners = [
    [-a, -a + b],
    [-a + b, -a],
    [0, -b],
    [a - b, -a],
    [a, -a + b],
    [b, 0],
    [a, a - b],
    [a - b, a],
    [0, b],
    [-a + b, a],
    [-a, a - b],
    [-b, 0],
  ];
  const at = ([dx, dy]) => `${(x + dx).toFixed(2)},${(y + dy).toFixed(2)}`;
  return `M${corners.map(at).join("L")}Z`;
}

function marker(look, x, y, r, attributes = {}) {
  const [form, colour] = look;
  const open = form === "ring";
  return shape("path", {
    d: markerPath(form, x, y, r),
    style: open
      ? `fill:none;stroke:var(${colour});stroke-width:3`
      : `fill:var(${colour});stroke-width:1.4;` +
        `stroke:var(${form === "star" ? "--oracle-edge" : "--panel"})`,
    ...attributes,
  });
}

function keyOf(look) {
  const svg = shape("svg", { viewBox: "0 0 16 16", class: "key", "aria-hidden": "true" });
  svg.append(marker(look, 8, 8.5, 5));
  return svg;
}

// Calls `draw(width)` now and whenever the element's width changes; not while it is folded away.
// What is returned draws at once, as paper needs it.
function responsive(box, draw) {
  let width = 0;
  const redraw = () => {
    const now = Math.floor(box.clientWidth);
    if (now > 0 && now !== width && !box.closest("details:not([open])")) {
      width = now;
      draw(now);
    }
  };
  new ResizeObserver(redraw).observe(box);
  redraw();
  return redraw;
}
