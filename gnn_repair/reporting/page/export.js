// Taking things away: pictures as SVG and PNG, tables as CSV, the view as a link, and paper.

const KEPT_STYLES = [
  "fill",
  "fill-opacity",
  "stroke",
  "stroke-width",
  "stroke-opacity",
  "stroke-dasharray",
  "stroke-linejoin",
  "opacity",
  "paint-order",
  "font-size",
  "font-weight",
  "font-family",
  "text-anchor",
  "visibility",
];

// A picture as a file of its own: the style sheet's colours written into it.
function standalone(svg) {
  const copy = svg.cloneNode(true),
    [, , width, height] = svg.getAttribute("viewBox").split(" ").map(Number);
  const from = [svg, ...svg.querySelectorAll("*")],
    to = [copy, ...copy.querySelectorAll("*")];
  from.forEach((drawn, j) => {
    const style = getComputedStyle(drawn);
    to[j].setAttribute(
      "style",
      KEPT_STYLES.map((name) => `${name}:${style.getPropertyValue(name)}`).join(";"),
    );
    for (const name of ["class", "tabindex", "role"]) to[j].removeAttribute(name);
  });
  copy.setAttribute("xmlns", SVG);
  copy.setAttribute("width", width);
  copy.setAttribute("height", height);
  const paper = getComputedStyle(document.documentElement).getPropertyValue("--panel").trim();
  copy.prepend(shape("rect", { width, height, fill: paper }));
  return { text: new XMLSerializer().serializeToString(copy), width, height };
}

function fileName(title) {
  const part = (text) =>
    text
      .toLowerCase()
      .replace(/[^a-z0-9]+/g, "-")
      .replace(/^-|-$/g, "");
  return part(title) || "picture";
}

function saveFile(name, blob) {
  const address = URL.createObjectURL(blob);
  element("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
  announce(`${name} was saved.`);
}

function saveSvg(svg, title) {
  saveFile(`${title}.svg`, new Blob([standalone(svg).text], { type: "image/svg+xml" }));
}

// Twice the size on screen, for print.
function savePng(svg, title) {
  const { text, width, height } = standalone(svg),
    image = new Image();
  image.addEventListener("load", () => {
    const sheet = element("canvas", { width: 2 * width, height: 2 * height });
    sheet.getContext("2d").drawImage(image, 0, 0, 2 * width, 2 * height);
    sheet.toBlob((blob) => saveFile(`${title}.png`, blob), "image/png");
  });
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
}

function toolButton(text, label, onclick) {
  const made = element("button", { type: "button", class: "tool", "aria-label": label, onclick });
  made.textContent = text;
  return made;
}

// Buttons for the picture in `box`; `titleOf()` names the file.
function exportTools(title, box, { titleOf = () => title, table = false } = {}) {
  const save = (how) => () =>
    [...box.querySelectorAll("svg")].forEach((svg, j) =>
      how(svg, fileName(j ? `${titleOf()} ${j + 1}` : titleOf())),
    );
  const sheet = () => saveCsv(fileName(titleOf()), tableRows(box.querySelector("table")));
  return element(
    "span",
    { class: "tools", role: "group", "aria-label": `Save: ${title}` },
    ...(table
      ? [toolButton("CSV", `Save ${title} as CSV`, sheet)]
      : [
          toolButton("SVG", `Save ${title} as SVG`, save(saveSvg)),
          toolButton("PNG", `Save ${title} as PNG`, save(savePng)),
        ]),
  );
}

function csvCell(value) {
  if (typeof value === "number") return Number.isFinite(value) ? String(value) : "";
  // A spreadsheet would take such a name for a formula.
  const bare = withoutMarks(value),
    text = /^[=+\-@\t\r]/.test(bare) ? `'${bare}` : bare;
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
function csvText(rows) {
  return rows.map((row) => row.map(csvCell).join(",")).join("\r\n") + "\r\n";
}
function saveCsv(name, rows) {
  saveFile(`${name}.csv`, new Blob([`\ufeff${csvText(rows)}`], { type: "text/csv" }));
}
// A number as other programs read it: without a plus, with their minus; nothing for a dash.
function tableValue(text) {
  const plain = text.replaceAll("−", "-").replace(/^\+/, "");
  if (text === "–") return NaN;
  return /^-?\d+(\.\d+)?(e[+-]?\d+)?$/.test(plain) ? Number(plain) : text;
}
function tableRows(table) {
  return [...table.rows].map((row) => [...row.cells].map((cell) => tableValue(cell.textContent)));
}

// The nodes of the list, in its order.
function nodeRows(run, shown) {
  const head = [run.noun, "name", "true class", "frozen prediction", "status", "degree"];
  head.push("neighbours of its class", "frozen margin", "gamma", "support");
  head.push("share of weight to move", "chance");
  for (const repair of run.repairs) head.push(repair.title, `margin ${repair.title}`);
  const rows = shown.map((i) => {
    const node = run.nodes[i];
    return [
      node,
      nodeName(run, node),
      className(run, run.labels[node]),
      className(run, run.predictions[node]),
      STATUS_WORDS[statusOf(run, i)][1],
      run.degree[i],
      run.homophily[i],
      frozenMargins(run)[i],
      run.margins[i],
      run.support[i],
      (sparse(run, "class_shares", i).find(([c]) => c === run.labels[node]) || [0, NaN])[1],
      run.chance ? run.chance[i] : NaN,
      ...run.repairs.flatMap((repair, j) => [
        className(run, repair.predictions[i]),
        repairMargin(run, j, i),
      ]),
    ];
  });
  return [head, ...rows];
}

// All terms of a node: weights as they are, and what each adds to the lead over every rival.
function termRows(node) {
  const { run } = node,
    weighed = node.points.filter((point) => point.coefficients);
  const rivals = rivalOrder(node);
  const head = ["source", "name", "group", "class"];
  head.push(
    ...weighed.map((point) => (point.key === "frozen" ? "alpha" : `lambda ${point.title}`)),
  );
  head.push(...rivals.map((r) => `${run.head ? "alone" : "frozen"}, over ${className(run, r)}`));
  const rows = Array.from({ length: node.count }, (_, k) => {
    const source = sourceOf(node, k),
      lead = (r) => {
        if (!run.head)
          return node.alpha[k] * (contribution(node, k, node.label) - contribution(node, k, r));
        const logits = vertexLogits(node, k);
        return logits[node.label] - logits[r];
      };
    return [
      source,
      nodeName(run, source),
      run.groups[node.group[k]],
      isForeign(run, source) ? "" : className(run, run.labels[source]),
      ...weighed.map((point) => point.coefficients[k]),
      ...rivals.map(lead),
    ];
  });
  return [head, ...rows];
}

async function copyLink() {
  const button = byId("copy-link");
  let done = false;
  try {
    await navigator.clipboard.writeText(location.href);
    done = true;
  } catch {
    // No clipboard here; then the link is shown to be copied by hand.
  }
  if (!done) notice(location.href);
  button.textContent = done ? "Copied" : "Shown above";
  announce(done ? "The link to this view was copied." : "The link to this view is shown.");
  setTimeout(() => {
    button.textContent = "Copy link to this view";
  }, 1500);
}

function startExports(explorer) {
  const named = (what) => () => `${what} ${explorer.run.noun} ${explorer.node.id}`;
  for (const [id, title] of [
    ["plane", "polytope"],
    ["logits", "logits"],
    ["neighbourhood", "neighbourhood"],
    ["compare", "comparison"],
  ])
    byId(`${id}-tools`).replaceChildren(
      exportTools(title, byId(id === "compare" ? "compare-pictures" : id), {
        titleOf: named(title),
      }),
    );
  byId("nodes-csv").addEventListener("click", () =>
    saveCsv(fileName(explorer.run.nouns), nodeRows(explorer.run, explorer.list.shown)),
  );
  byId("terms-csv").addEventListener("click", () =>
    saveCsv(fileName(named("terms")()), termRows(explorer.node)),
  );
}

// On paper nothing scrolls: wide tables are cut into several, and everything is light.

// Beside up to seven columns of every part; what an A4 sheet holds at nine pixels.
const PRINTED_COLUMNS = 5;

// Copies of a table with its first `fixed` columns and a few of the others each.
function tableParts(table, fixed) {
  const width = Math.max(...[...table.rows].map((row) => row.cells.length)),
    parts = [];
  for (let from = fixed; from < width; from += PRINTED_COLUMNS) {
    const copy = table.cloneNode(true);
    for (const row of copy.rows)
      [...row.cells].forEach((cell, j) => {
        if (j >= fixed && (j < from || j >= from + PRINTED_COLUMNS)) cell.remove();
      });
    copy.removeAttribute("id");
    copy.classList.add("part");
    parts.push(copy);
  }
  return parts;
}

function startPrinting() {
  window.addEventListener("beforeprint", () => {
    applyTheme("light");
    for (const list of document.querySelectorAll("details:not([open])")) {
      list.open = true;
      list.dataset.closed = "";
    }
    drawFolded();
    for (const table of document.querySelectorAll("table[data-wide]")) {
      const fixed = Number(table.dataset.wide);
      if (table.rows[0].cells.length <= fixed + PRINTED_COLUMNS) continue;
      table.classList.add("cut");
      table.after(...tableParts(table, fixed));
    }
  });
  window.addEventListener("afterprint", () => {
    applyTheme(theme);
    for (const list of document.querySelectorAll("details[data-closed]")) {
      list.open = false;
      delete list.dataset.closed;
    }
    for (const part of document.querySelectorAll("table.part")) part.remove();
    for (const table of document.querySelectorAll("table.cut")) table.classList.remove("cut");
  });
}
