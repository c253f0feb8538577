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
