// Starting the page: theme, the two views, keys, and the whole state in the address.

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

// Starting the page: theme, the two views, addresses and keys.

const THEMES = ["auto", "light", "dark"];
let theme = "auto";

function applyTheme(name) {
  const dark =
    name === "dark" || (name === "auto" && matchMedia("(prefers-color-scheme: dark)").matches);
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  byId("theme").textContent = `◐ ${capital(name)}`;
}

function startThemes() {
  applyTheme(theme);
  byId("theme").addEventListener("click", () => {
    theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
    applyTheme(theme);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => applyTheme(theme));
}

// The overview is left where it was and found there again; a node is shown from its head on.
let leftAt = 0;
function show(name) {
  if (!byId(name).hidden) return;
  if (name === "nodes") leftAt = window.scrollY;
  for (const view of ["overview", "nodes"]) {
    byId(view).hidden = view !== name;
    byId(`tab-${view}`).setAttribute("aria-pressed", String(view === name));
  }
  window.scrollTo(0, name === "nodes" ? 0 : leftAt);
}

function drawFooter(made) {
  const parts = Object.entries(made || {}).map(([name, value]) => {
    const what = element("span"),
      text = element(name === "command" ? "code" : "b");
    text.textContent = value;
    what.append(name === "version" ? "made by " : `${name} `, text);
    return what;
  });
  byId("made").replaceChildren(...parts);
}

// The hidden half is not walked into by keys or screen readers; the visible one is one main region.
function startPage() {
  const payload = readPayload();
  takeLooks(payload.looks);
  byId("title").textContent = payload.title;
  byId("subtitle").textContent = payload.subtitle;
  drawFooter(payload.made);
  startThemes();
  startTips();
  startPrinting();
  const run = payload.run ? openRun(payload) : null;
  if (run) openBeside(run, payload);
  if (run && payload.parts) loadParts(run, payload.parts);
  let explorer = null;
  byId("tab-nodes").hidden = !run || !run.count;
  if (run) nameParts(run);

  function openNodes(parts) {
    show("nodes");
    if (!explorer) {
      explorer = openExplorer(run);
      startExports(explorer);
    }
    if (!parts) {
      explorer.show(explorer.state.i >= 0 ? explorer.state.i : startNode(run));
      return;
    }
    explorer.compare(parts);
    explorer.list.set(parts);
    const asked = parts.has("node") ? run.position.get(Number(parts.get("node"))) : undefined;
    if (asked === undefined && !explorer.list.shown.length) {
      explorer.agree();
      return;
    }
    const usual = explorer.list.filtered() ? explorer.list.shown[0] : startNode(run);
    explorer.show(asked ?? usual, { push: false, parts });
  }

  let drawn = -1;
  function openOverview(parts) {
    show("overview");
    const last = payload.study.cases.length - 1,
      asked = Number(parts.get("case") ?? payload.study.shown);
    const index = Number.isInteger(asked) && asked >= 0 && asked <= last ? asked : 0;
    if (drawn !== index) drawOverview(run, payload.study, index);
    drawn = index;
  }

  // #node=17 opens that node; #nodes the list; anything else the overview.
  function follow(parts) {
    const node = parts.get("node");
    notice("");
    if (run && node !== undefined && run.position.has(Number(node))) openNodes(parts);
    else if (run && parts.has("nodes")) openNodes(parts);
    else {
      openOverview(parts);
      if (node !== undefined) notice(missingNode(run, node));
    }
  }

  // Another step of the page's own, as if its address had been typed.
  function goTo(entries) {
    goToAddress(entries, true);
    // Not what the address says: the browser may have refused one step too many.
    follow(new Map(entries));
  }

  byId("tab-overview").addEventListener("click", () => goTo([["overview", true]]));
  byId("tab-nodes").addEventListener("click", () => {
    notice("");
    openNodes(null);
  });
  byId("case").addEventListener("change", (event) =>
    goTo([
      ["overview", true],
      ["case", event.target.value],
    ]),
  );
  byId("more").addEventListener("toggle", drawFolded);
  byId("copy-link").addEventListener("click", copyLink);
  byId("notice-close").addEventListener("click", () => notice(""));
  window.addEventListener("hashchange", () => follow(readAddress()));

  function lead(event) {
    const mark = event.target.closest(".go");
    if (!mark || !mark.go || !run) return false;
    const entries = Object.entries(mark.go);
    goTo(mark.go.node ? entries : [["nodes", true], ...entries]);
    return true;
  }
  document.addEventListener("click", lead);
  document.addEventListener("keydown", (event) => {
    const { target } = event,
      tag = target.tagName || "";
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const chosen = event.key === "Enter" || event.key === " ";
    if (chosen && tag !== "BUTTON" && target.classList.contains("go")) {
      event.preventDefault();
      target.dispatchEvent(new MouseEvent("click", { bubbles: true }));
      return;
    }
    const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(tag) && target.type !== "search";
    // Arrows scroll what has the focus and can be scrolled, such as a long table.
    const scrolls = tag && target.matches(".scroll, .sides") && isLonger(target);
    if (byId("nodes").hidden || typing || scrolls || !explorer) return;
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (by) {
      event.preventDefault();
      explorer.step(by);
    }
  });
  follow(readAddress());
}

function isLonger(box) {
  return box.scrollHeight > box.clientHeight;
}

// Where the page speaks of nodes before any is drawn.
function nameParts(run) {
  byId("tab-nodes").textContent = capital(run.nouns);
  byId("search").setAttribute("aria-label", `Search ${run.nouns}`);
  byId("nothing").textContent = `No ${run.noun} passes these filters.`;
  byId("list").setAttribute("aria-label", capital(run.nouns));
  byId("nodes").setAttribute("aria-label", capital(run.nouns));
  byId("node").setAttribute("aria-label", `The chosen ${run.noun}`);
  byId("nodes-csv").setAttribute("aria-label", `Save the listed ${run.nouns} as CSV`);
}

function missingNode(run, node) {
  if (!run) return `This page shows no single nodes, so there is no node ${node} to open.`;
  const number = Number(node),
    shown = `${count(run.count)} ${selected(run)}`,
    all = run.graph_starts ? run.graph_starts.length - 1 : run.recipients,
    inGraph = Number.isInteger(number) && number >= 0 && number < all;
  return inGraph
    ? `${capital(run.noun)} ${node} is not on this page, which shows ${shown}.`
    : `There is no ${run.noun} ${node}; this page shows ${shown}.`;
}

startPage();
