// Where the evidence was lost: what each rung of a fitted ladder gains over the one below it.

function lostCard(run) {
  const { lost } = run;
  if (!lost) return;
  const caption =
    `Points of accuracy on ${count(lost.nodes)} validation nodes, out of fold, ` +
    "over the rung in parentheses; bold: stands out in accuracy and likelihood";
  chartCard(
    "Where the evidence was lost",
    caption,
    () => element("div", { class: "scroll", id: "lost" }, lostTable(run, lost), ...lostLines(lost)),
    true,
  );
}

function lostTable(run, lost) {
  const cell = (tag, text, attributes = {}) => {
    const made = element(tag, attributes);
    made.textContent = text;
    return made;
  };
  const head = element(
    "tr",
    {},
    cell("th", "Reads", { class: "text" }),
    cell("th", "Gain"),
    cell("th", "± error"),
    ...run.classes.map((name) => cell("th", name)),
  );
  const body = lost.rows.map((row) =>
    element(
      "tr",
      { class: row.clear ? "total" : null, tip: [row.words] },
      cell("td", `${row.rung} (${row.above})`, { class: "text" }),
      cell("td", signed(row.gain, 1)),
      cell("td", figure(row.error, 1)),
      ...row.classes.map((gain) => cell("td", gain === null ? "–" : signed(gain, 1))),
    ),
  );
  return element("table", {}, element("thead", {}, head), element("tbody", {}, ...body));
}

function lostLines(lost) {
  const texts = lost.advice.map((line) => `→ ${line}`);
  texts.push(`Best single rung: ${lost.chosen}.`);
  if (lost.transductive.length) {
    const names = lost.transductive.join(", ");
    texts.push(`Transductive, for they read labels or features of this graph: ${names}.`);
  }
  return texts.map((text) => {
    const line = element("p", { class: "caption" });
    line.textContent = text;
    return line;
  });
}
