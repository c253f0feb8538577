// The whole state of the page stands in the address's fragment: "#node=185&status=reachable".

function readAddress() {
  const parts = new Map();
  for (const [key, value] of new URLSearchParams(location.hash.slice(1)))
    if (!parts.has(key)) parts.set(key, value);
  return parts;
}

// Entries [key, value] as a fragment; what is empty is left out, a page's name has no value.
function fragmentOf(entries) {
  const kept = entries.filter(([, value]) => value !== null && value !== undefined && value !== "");
  const text = ([key, value]) =>
    value === true ? key : `${key}=${encodeURIComponent(value).replaceAll("%2C", ",")}`;
  return `#${kept.map(text).join("&")}`;
}

// A step that Back undoes, or a change of the same step.
function goToAddress(entries, push) {
  const fragment = fragmentOf(entries);
  if (location.hash === fragment) return;
  // Browsers refuse hundreds of steps in a few seconds; then the address stays behind for a moment.
  try {
    history[push ? "pushState" : "replaceState"](null, "", fragment);
  } catch {
    // Nothing is lost but a step back.
  }
}

// A range "from~to" of numbers, either side open.
function rangeText([from, to]) {
  const side = (value) => (Number.isFinite(value) ? String(value) : "");
  return `${side(from)}~${side(to)}`;
}
function rangeOf(text) {
  const [from, to, more] = text.split("~");
  if (to === undefined || more !== undefined) return null;
  const range = [from === "" ? -Infinity : Number(from), to === "" ? Infinity : Number(to)];
  return range.some(Number.isNaN) ? null : range;
}

function notice(text) {
  byId("notice").hidden = !text;
  byId("notice-text").textContent = text;
}
