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
