// Where the evidence was lost: what each rung of a fitted ladder gains over another candidate.

function lostCard(run) {
  const { lost } = run;
  if (!lost) return;
  const held = lost.nodes === 1 ? run.noun : run.nouns,
    scope = `${caseScope(run)}${count(lost.nodes)} validation ${held}, out of fold`;
  chartCard(
    "What each rung gains",
    "Points of accuracy over the candidate in parentheses; the bar is one standard error. " +
      "Filled: " +
      "two standard errors in accuracy and likelihood",
    (width) => rungPlot(width, lost.rows),
    { scope },
  );
  chartCard(
    "Where the evidence was lost",
    "Points of accuracy over the candidate in parentheses, overall and by class; " +
      "bold: stands out in " +
      `accuracy and likelihood. A class leads to its ${run.nouns} on this page`,
    () => element("div", { class: "scroll", id: "lost" }, lostTable(run, lost), ...lostLines(lost)),
    { scope, wide: true, table: true },
  );
}

function rungPlot(width, rows) {
  const left = Math.min(330, width * 0.5),
    rowHeight = 30,
    bottom = 8 + rows.length * rowHeight;
  const svg = canvas(width, bottom + 36, "Gain of every rung");
  const [low, high] = padded([
      0,
      ...rows.flatMap((row) => [row.gain - row.error, row.gain + row.error]),
    ]),
    x = scale(low, high, left, width - 52);
  for (const tick of ticks(low, high, width < 420 ? 3 : 6))
    svg.append(
      shape("line", { x1: x(tick), x2: x(tick), y1: 4, y2: bottom, class: tick ? "grid" : "zero" }),
      words(x(tick), bottom + 15, tickWords(tick), {
        class: "small muted",
        "text-anchor": "middle",
      }),
    );
  svg.append(
    words((left + width - 52) / 2, bottom + 31, "points of accuracy", {
      class: "small muted",
      "text-anchor": "middle",
    }),
  );
  rows.forEach((row, j) => {
    const y = 8 + (j + 0.5) * rowHeight,
      title = `${row.rung} (${row.above})`;
    svg.append(
      shape(
        "g",
        { tip: [title, row.words] },
        shape("rect", { x: 0, y: y - 14, width, height: 28, fill: "transparent" }),
        words(left - 8, y + 4, shorten(title, left - 10, 11), {
          class: "small",
          "text-anchor": "end",
        }),
        shape("line", {
          x1: x(row.gain - row.error),
          x2: x(row.gain + row.error),
          y1: y,
          y2: y,
          style: "stroke:var(--true);stroke-width:3;opacity:.6",
        }),
        marker([row.clear ? "circle" : "ring", "--true"], x(row.gain), y, 5),
        words(width - 44, y + 4, signed(row.gain, 1), { class: row.clear ? "bold" : "" }),
      ),
    );
  });
  return svg;
}

function lostTable(run, lost) {
  const cell = (tag, text, attributes = {}) => {
    const made = element(tag, attributes);
    made.textContent = text;
    return made;
  };
  const leading = (name, c) => {
    const button = goButton(name, { label: String(c) }, [name, `click to see its ${run.nouns}`]);
    return element("th", { scope: "col" }, button);
  };
  const head = element(
    "tr",
    {},
    cell("th", "Reads", { class: "text", scope: "col" }),
    cell("th", "Gain", { scope: "col" }),
    cell("th", "± error", { scope: "col" }),
    ...run.classes.map(leading),
  );
  const body = lost.rows.map((row) =>
    element(
      "tr",
      { class: row.clear ? "total" : null },
      cell("td", `${row.rung} (${row.above})`, {
        class: "text",
        tip: [`${row.rung} (${row.above})`, row.words],
      }),
      cell("td", signed(row.gain, 1)),
      cell("td", figure(row.error, 1)),
      ...row.classes.map((gain) => cell("td", gain === null ? "–" : signed(gain, 1))),
    ),
  );
  return element(
    "table",
    { "data-wide": 3 },
    element("thead", {}, head),
    element("tbody", {}, ...body),
  );
}

function lostLines(lost) {
  const texts = lost.advice.map((line) => `→ ${line}`);
  texts.push(`Most weight: ${lost.chosen}.`);
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
