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
