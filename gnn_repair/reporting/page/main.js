// Starting the page: theme, the two views, addresses and keys.

const THEMES = ["auto", "light", "dark"];
let theme = "auto";

function applyTheme(name) {
  const dark =
    name === "dark" || (name === "auto" && matchMedia("(prefers-color-scheme: dark)").matches);
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  byId("theme").textContent = `◐ ${name}`;
}

function startThemes() {
  applyTheme(theme);
  byId("theme").addEventListener("click", () => {
    theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
    applyTheme(theme);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => applyTheme(theme));
  window.addEventListener("beforeprint", () => applyTheme("light"));
  window.addEventListener("afterprint", () => applyTheme(theme));
}

function show(name) {
  for (const view of ["overview", "nodes"]) {
    byId(view).hidden = view !== name;
    byId(`tab-${view}`).setAttribute("aria-pressed", String(view === name));
  }
}

function startPage() {
  const payload = readPayload();
  takeLooks(payload.looks);
  byId("title").textContent = payload.title;
  byId("subtitle").textContent = payload.subtitle;
  startThemes();
  startTips();
  const run = payload.run ? openRun(payload) : null;
  let explorer = null;
  byId("tab-nodes").hidden = !run || !run.count;

  function openNodes(i) {
    show("nodes");
    explorer ||= openExplorer(run);
    explorer.show(i ?? (explorer.state.i >= 0 ? explorer.state.i : (explorer.list.shown[0] ?? 0)));
  }

  let drawn = false;
  function openOverview() {
    show("overview");
    if (!drawn) drawOverview(run, payload.study);
    drawn = true;
  }

  // #node=17 opens that node; anything else the overview.
  function follow() {
    const match = /^#node=(\d+)$/.exec(location.hash);
    const i = match && run ? run.position.get(Number(match[1])) : undefined;
    if (i !== undefined) openNodes(i);
    else if (location.hash === "#nodes" && run) openNodes();
    else openOverview();
  }

  byId("tab-overview").addEventListener("click", () => {
    history.replaceState(null, "", "#overview");
    openOverview();
  });
  byId("tab-nodes").addEventListener("click", () => openNodes());
  window.addEventListener("hashchange", follow);
  document.addEventListener("keydown", (event) => {
    const typing =
      event.target.tagName &&
      /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName) &&
      event.target.type !== "search";
    if (byId("nodes").hidden || typing || event.ctrlKey || event.metaKey || event.altKey) return;
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (by) {
      event.preventDefault();
      explorer.step(by);
    }
  });
  follow();
}

startPage();
