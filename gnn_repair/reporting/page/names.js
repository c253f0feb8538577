// What things are called: names that can be told apart, and one or many of them in words.

// Marks that turn the reading direction: a name must not turn the words around it.
const TURNING = /[\u200e\u200f\u061c\u202a-\u202e\u2066-\u2069]/g;
const LEFTWARD = /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc\u{10800}-\u{10fff}\u{1e800}-\u{1efff}]/u;

// A name on one line; one that is read from right to left stays within itself.
function tidyName(name) {
  const bare = name.replace(TURNING, "").replace(/\s+/g, " ").trim();
  return LEFTWARD.test(bare) ? `\u2068${bare}\u2069` : bare;
}
function withoutMarks(text) {
  return text.replace(/[\u2068\u2069]/g, "");
}

// Names of classes: a blank one is called by its number, equal ones have theirs behind them.
function distinctNames(names) {
  const shown = names.map((name, c) => tidyName(name) || `class ${c}`),
    times = new Map();
  for (const name of shown) times.set(name, (times.get(name) || 0) + 1);
  return shown.map((name, c) => (times.get(name) > 1 ? `${name} (${c})` : name));
}

function className(run, index) {
  return index < 0 ? "unlabelled" : run.classes[index];
}
// After the word "class": "class 7" is "7" there, other names are as they are.
function bareClass(run, index) {
  return index < 0 ? "unknown" : run.shortClasses[index];
}
function nodeName(run, node) {
  if (run.graph_starts) return pooledName(run, node);
  return (run.names && tidyName(run.names[node])) || String(node);
}
// A sender that is no recipient's like: it has a name, and neither class nor prediction.
function isForeign(run, source) {
  return run.labels[source] < 0 && run.predictions[source] < 0;
}
// What sends a message: of a classified graph one of its nodes, else one of the recipients' kind.
function senderNoun(run) {
  return run.graph_starts ? "node" : run.noun;
}
function senderWords(node, source) {
  if (source === node.id) return "itself";
  const name = nodeName(node.run, source);
  return node.run.names && isForeign(node.run, source) ? name : `${senderNoun(node.run)} ${name}`;
}
// A sender where others stand beside it: with its kind where they are of several.
function sourceName(run, source) {
  const mixed = !run.graph_starts && run.labels.length > run.recipients;
  const name = nodeName(run, source);
  return mixed && !isForeign(run, source) ? `${run.noun} ${name}` : name;
}

function capital(text) {
  return text.slice(0, 1).toUpperCase() + text.slice(1);
}
function titled(run, node) {
  return `${capital(run.noun)} ${nodeName(run, node)}`;
}
// "1 node", "1,041 nodes".
function counted(run, n) {
  return `${count(n)} ${n === 1 ? run.noun : run.nouns}`;
}
// What the page calls its nodes, "test nodes", of n of them.
function selected(run, n = run.count) {
  const { selection, noun, nouns } = run;
  if (n !== 1 || !selection.endsWith(nouns)) return selection;
  return selection.slice(0, selection.length - nouns.length) + noun;
}
