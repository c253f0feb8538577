// The page's data: the embedded payload, the run behind it, and the little linear algebra
// everything is computed with: z(λ) = β + Σ λ ℓ, margins, masses and bounds.

// Reading the embedded payload: JSON whose arrays are base64 of little-endian numbers.

const ARRAY_TYPES = {
  u1: Uint8Array,
  u2: Uint16Array,
  u4: Uint32Array,
  i1: Int8Array,
  i2: Int16Array,
  i4: Int32Array,
  f4: Float32Array,
  f8: Float64Array,
};

function decodeArray(entry) {
  const type = ARRAY_TYPES[entry.type];
  if (Uint8Array.fromBase64) return new type(Uint8Array.fromBase64(entry.data).buffer);
  const text = atob(entry.data);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return new type(bytes.buffer);
}

function readPayload() {
  const block = document.getElementById("payload");
  const payload = JSON.parse(block.textContent);
  block.remove(); // The text is decoded; megabytes of it need not stay in the document.
  return payload;
}

// Running sums of lengths: [0, l0, l0 + l1, …].
function startsOf(lengths) {
  const starts = new Uint32Array(lengths.length + 1);
  for (let i = 0; i < lengths.length; i++) starts[i + 1] = starts[i] + lengths[i];
  return starts;
}

// Large pages: the terms of node i come from a file beside the page, a few of which are kept.
const KEPT_PARTS = 6;

async function fetchPart(parts, name) {
  let answer = null;
  try {
    answer = await fetch(`${parts.folder}/${parts.digest}-${name}.json`);
  } catch {
    // A page opened as a file may not read others.
  }
  if (!answer || !answer.ok)
    throw new Error(
      "The terms lie in files beside this page, which browsers read from a server only: " +
        "run “gnn-repair view” with this page's name.",
    );
  const entries = Object.entries(await answer.json());
  return Object.fromEntries(entries.map(([key, entry]) => [key, decodeArray(entry)]));
}

// Gives the run `ensure(i)`: null when node i can be drawn at once, else a promise that it can.
function loadParts(run, parts) {
  const held = new Map();
  const partOf = (i) => parts.edges.findIndex((edge) => i < edge) - 1;
  run.ensure = (i) => {
    const number = partOf(i);
    if (run.contributions && held.has(number)) return null;
    const table = run.contributions ? null : fetchPart(parts, "table");
    return Promise.all([fetchPart(parts, number), table]).then(([terms, found]) => {
      if (found) run.contributions = found.contributions;
      held.set(number, { ...terms, from: run.segments[parts.edges[number] * run.groupCount] });
      while (held.size > KEPT_PARTS) held.delete(held.keys().next().value);
    });
  };
  run.termsOf = (i) => held.get(partOf(i));
}

// The run behind the page, and the little linear algebra everything is computed with:
// z(λ) = β + Σ λ ℓ, margins, masses and bounds.

// When γ counts as a win and λ as active; the payload says, so that page and package agree.
let REACHABLE = NaN;
let ACTIVE = NaN;

// All numbers of the run. Node i is the i-th of the list; `nodes[i]` is its number in the graph.
function openRun(payload) {
  ({ reachable: REACHABLE, active: ACTIVE } = payload.run.thresholds);
  const arrays = {};
  for (const [name, entry] of Object.entries(payload.arrays)) arrays[name] = decodeArray(entry);
  const run = { ...payload.run, ...arrays, count: arrays.nodes.length };
  run.classes = distinctNames(run.classes);
  run.classCount = run.classes.length;
  run.groupCount = run.groups.length;
  run.segments = startsOf(arrays.lengths);
  run.starts = {};
  for (const name of Object.keys(arrays).filter((key) => key.endsWith("_lengths")))
    run.starts[name.slice(0, -"_lengths".length)] = startsOf(arrays[name]);
  run.repairs = payload.run.repairs.map((repair, j) => ({
    ...repair,
    logits: arrays[`repair_${j}_logits`],
    place: j,
    predictions: arrays[`repair_${j}_predictions`],
  }));
  // "class 7" is "7" where room is short.
  run.shortClasses = run.classes.map((name) => name.replace(/^class (?=\d+$)/, ""));
  // Nodes that can be opened come first; the overview counts all of them.
  run.explored ??= run.count;
  run.position = new Map();
  for (let i = 0; i < run.explored; i++) run.position.set(run.nodes[i], i);
  // How much node i changed between what is compared; nothing is compared at first.
  run.changed = () => 0;
  // Where the terms of node i lie: in one piece, unless parts of them are read on demand.
  const whole = { ...arrays, from: 0 };
  run.termsOf = () => whole;
  if (arrays.edge_sources) run.neighbours = neighboursOf(run);
  return run;
}

// What the payload holds of few terms or classes of a node: [[which, value], …].
function sparse(run, name, i) {
  const starts = run.starts[name];
  if (!starts) return [];
  const columns = run[`${name}_columns`],
    values = run[`${name}_values`];
  return Array.from({ length: starts[i + 1] - starts[i] }, (_, k) => [
    columns[starts[i] + k],
    values[starts[i] + k],
  ]);
}

// Edges as a map from a node to its neighbours, built when first asked for.
function neighboursOf(run) {
  let starts = null,
    others = null;
  return (node) => {
    if (!starts) {
      const lengths = new Uint32Array(run.labels.length);
      for (const end of [run.edge_sources, run.edge_recipients]) for (const v of end) lengths[v]++;
      starts = startsOf(lengths);
      others = new Uint32Array(starts[lengths.length]);
      const next = starts.slice();
      for (let e = 0; e < run.edge_sources.length; e++) {
        const a = run.edge_sources[e],
          b = run.edge_recipients[e];
        others[next[a]++] = b;
        others[next[b]++] = a;
      }
    }
    return others.subarray(starts[node], starts[node + 1]);
  };
}

function isRight(run, i) {
  return run.predictions[run.nodes[i]] === run.labels[run.nodes[i]];
}
// How often a class that is neither true nor predicted could win at these nodes: [proved, not
// excluded]; null where nobody asked, and with two classes.
function chanceAt(run, nodes) {
  if (!run.chance) return null;
  const high = run.chance_possible || run.chance;
  const asked = nodes.filter((i) => !Number.isNaN(run.chance[i]));
  if (!asked.length) return null;
  const mean = (values) => asked.reduce((sum, i) => sum + values[i], 0) / asked.length;
  return [mean(run.chance), mean(high)];
}
function chanceWords(chance) {
  const [low, high] = chance.map((share) => percent(share, 0));
  return low === high ? `chance ${low}` : `chance ${low} to ${high}`;
}
function isReachable(run, i) {
  return run.margins[i] > REACHABLE;
}

// A model with a nonlinear head: what the oracle says of node i (can, cannot, undecided).
function headVerdict(run, i) {
  return run.head && run.head.verdicts[run.head_verdict[i]];
}

function statusOf(run, i) {
  if (isRight(run, i)) return "right";
  if (headVerdict(run, i) === "undecided") return "undecided";
  if (Number.isNaN(run.margins[i])) return "unknown";
  return isReachable(run, i) ? "reachable" : "unreachable";
}

const STATUS_WORDS = {
  right: ["✓", "frozen model is right"],
  reachable: ["◆", "wrong, evidence is there"],
  unreachable: ["✕", "wrong, evidence is not there"],
  undecided: ["?", "wrong, undecided whether the evidence is there"],
  unknown: ["?", "wrong, not solved"],
};

// The lead of the true class when frozen, of every node; computed when first asked for.
function frozenMargins(run) {
  run.leads ||= Float64Array.from({ length: run.explored }, (_, i) =>
    leadIn(run, run.frozen_logits, i),
  );
  return run.leads;
}
function repairMargin(run, j, i) {
  return leadIn(run, run.repairs[j].logits, i);
}
function leadIn(run, logits, i) {
  const C = run.classCount;
  return verdictOf(logits.subarray(i * C, i * C + C), run.labels[run.nodes[i]]).margin;
}

// What a repair did to node i: corrected, broken, kept right or kept wrong.
function outcomeOf(run, repair, i) {
  const now = repair.predictions[i] === run.labels[run.nodes[i]];
  if (isRight(run, i)) return now ? "kept" : "broken";
  return now ? "corrected" : "missed";
}

// Everything about node i, unpacked: K terms with α, the witness, and one point per method.
function openNode(run, i) {
  const C = run.classCount,
    G = run.groupCount,
    base = i * G;
  const terms = run.termsOf(i),
    first = run.segments[base] - terms.from,
    last = run.segments[base + G] - terms.from;
  const node = { run, i, id: run.nodes[i], label: run.labels[run.nodes[i]], count: last - first };
  node.predicted = run.predictions[node.id];
  node.beta = Float64Array.from(run.fixed_logits.subarray(i * C, i * C + C));
  node.alpha = Float64Array.from(terms.coefficients.subarray(first, last));
  node.rows = terms.rows.subarray(first, last);
  node.group = new Uint8Array(node.count);
  node.bounds = [];
  for (let g = 0; g < G; g++) {
    const low = run.segments[base + g] - run.segments[base],
      high = run.segments[base + g + 1] - run.segments[base];
    node.bounds.push([low, high]);
    node.group.fill(g, low, high);
  }
  node.mass = massesOf(node, node.alpha);
  node.witness = new Float64Array(node.count);
  if (node.count) for (const [k, value] of sparse(run, "witness", i)) node.witness[k] = value;
  node.weights = new Float64Array(C);
  for (const [r, value] of sparse(run, "rival_weights", i)) node.weights[r] = value;
  const changed = node.count ? sparse(run, "nearest", i) : [];
  node.nearest = changed.length ? Float64Array.from(node.alpha) : null;
  for (const [k, value] of changed) node.nearest[k] = value;
  node.frozen = Float64Array.from(run.frozen_logits.subarray(i * C, i * C + C));
  if (run.head) node.alone = terms.alone_logits.subarray(first * C, last * C);
  node.points = pointsOf(node, terms, first, last);
  return node;
}

// The named predictions of a node: frozen, its smallest change, oracle and every repair.
function pointsOf(node, terms, first, last) {
  const { run, i } = node,
    C = run.classCount;
  const points = [
    { key: "frozen", title: "Frozen", logits: node.frozen, coefficients: node.alpha },
  ];
  if (node.count && (run.head ? headVerdict(run, i) : !Number.isNaN(run.margins[i]))) {
    const logits = run.head
      ? Float64Array.from(run.oracle_logits.subarray(i * C, i * C + C))
      : logitsAt(node, node.witness);
    points.push({ key: "oracle", title: "Oracle", logits, coefficients: node.witness });
  }
  if (node.nearest && !run.head)
    points.push({
      key: "nearest",
      title: "Smallest change",
      logits: logitsAt(node, node.nearest),
      coefficients: node.nearest,
    });
  for (const repair of run.repairs) {
    const logits = Float64Array.from(repair.logits.subarray(i * C, i * C + C));
    const all = terms[`repair_${repair.place}_coefficients`],
      coefficients = all && Float64Array.from(all.subarray(first, last));
    const { key, title, kind, place } = repair;
    points.push({ key, title, kind, place, logits, coefficients });
  }
  for (const point of points) Object.assign(point, verdictOf(point.logits, node.label));
  // The smallest change wins by next to nothing, which float32 blurs.
  const nearest = points.find((point) => point.key === "nearest");
  if (nearest)
    Object.assign(nearest, { predicted: node.label, margin: Math.max(0, nearest.margin) });
  return points;
}

function contribution(node, k, c) {
  return node.run.contributions[node.rows[k] * node.run.classCount + c];
}
function sourceOf(node, k) {
  return node.run.sources[node.rows[k]];
}

// With a nonlinear head the page knows logits at single mixtures only, not at any λ.
function logitsAt(node, lambda) {
  if (node.run.head) return Float64Array.from(node.frozen);
  const C = node.run.classCount,
    table = node.run.contributions;
  const logits = Float64Array.from(node.beta);
  for (let k = 0; k < node.count; k++) {
    if (lambda[k] === 0) continue;
    const row = node.rows[k] * C;
    for (let c = 0; c < C; c++) logits[c] += lambda[k] * table[row + c];
  }
  return logits;
}

function massesOf(node, lambda) {
  return node.bounds.map(([low, high]) => {
    let total = 0;
    for (let k = low; k < high; k++) total += lambda[k];
    return total;
  });
}

function argmax(values) {
  let best = 0;
  for (let c = 1; c < values.length; c++) if (values[c] > values[best]) best = c;
  return best;
}

// The worst-rival margin of class c and the rival that attains it.
function verdictOf(logits, c) {
  let rival = c === 0 ? 1 : 0;
  for (let r = 0; r < logits.length; r++) if (r !== c && logits[r] > logits[rival]) rival = r;
  return { margin: logits[c] - logits[rival], rival, predicted: argmax(logits) };
}

// w·Δβ + Σ m_g max_a Σ_r w_r (ℓ_{a,c} − ℓ_{a,r}): no admissible mixture scores above this.
function boundOf(node) {
  const c = node.label,
    w = node.weights,
    C = w.length;
  let bound = 0;
  for (let r = 0; r < C; r++) bound += w[r] * (node.beta[c] - node.beta[r]);
  node.bounds.forEach(([low, high], g) => {
    let best = -Infinity;
    for (let k = low; k < high; k++) {
      let score = 0;
      for (let r = 0; r < C; r++)
        if (w[r]) score += w[r] * (contribution(node, k, c) - contribution(node, k, r));
      best = Math.max(best, score);
    }
    if (high > low) bound += node.mass[g] * best;
  });
  return bound;
}

// λ with term k set to `value` and the rest of its group scaled so that the group's mass stays.
function moveMass(node, lambda, k, value) {
  const g = node.group[k],
    [low, high] = node.bounds[g],
    mass = node.mass[g];
  if (high - low === 1) return;
  const wanted = Math.min(mass, Math.max(0, value));
  let rest = 0;
  for (let j = low; j < high; j++) if (j !== k) rest += lambda[j];
  const left = mass - wanted;
  for (let j = low; j < high; j++) {
    if (j === k) continue;
    lambda[j] = rest > 1e-12 * mass ? (lambda[j] * left) / rest : left / (high - low - 1);
  }
  lambda[k] = wanted;
}

function centred(logits) {
  const mean = logits.reduce((sum, z) => sum + z, 0) / logits.length;
  return Array.from(logits, (z) => z - mean);
}
