// Which classes are taken for which, and whether the evidence was there.

const MOST_CLASSES = 40;
// So few fit beside another card, in cells as wide as they need be.
const FEW_CLASSES = 9;

function confusionOf(run) {
  const C = run.classCount;
  const cells = Array.from({ length: C * C }, () => ({ n: 0, reachable: 0, open: 0 }));
  for (let i = 0; i < run.count; i++) {
    const node = run.nodes[i],
      cell = cells[run.labels[node] * C + run.predictions[node]],
      status = statusOf(run, i);
    cell.n++;
    cell.reachable += status === "reachable";
    cell.open += status === "undecided" || status === "unknown";
  }
  return cells;
}

// The classes with the most nodes, in their own order, where there are too many to be drawn.
function drawnClasses(run, cells) {
  const C = run.classCount,
    all = Array.from({ length: C }, (_, c) => c);
  const size = (c) =>
    all.reduce((sum, d) => sum + cells[c * C + d].n + (c === d ? 0 : cells[d * C + c].n), 0);
  if (C <= MOST_CLASSES) return all;
  return [...all]
    .sort((a, b) => size(b) - size(a))
    .slice(0, MOST_CLASSES)
    .sort((a, b) => a - b);
}

function confusionCard(run) {
  const cells = confusionOf(run),
    drawn = drawnClasses(run, cells);
  const some = drawn.length < run.classCount ? ` The ${drawn.length} largest classes.` : "";
  chartCard(
    "Which classes are taken for which",
    "Rows: the true class. Columns: what the frozen model says. A cell's colours share out its " +
      `errors by reach; its number counts ${run.nouns}.${some}`,
    (width) => confusionPlot(width, run, cells, drawn),
    { scope: runScope(run), wide: drawn.length > FEW_CLASSES },
  );
}

function confusionPlot(width, run, cells, drawn) {
  const C = run.classCount,
    longest = Math.max(...drawn.map((c) => textWidth(run.shortClasses[c], 11))),
    left = Math.min(130, width * 0.28, longest + 18) + 16;
  // A cell is as wide as a finger; what does not fit is scrolled to.
  const few = drawn.length <= FEW_CLASSES,
    wide = Math.max(24, Math.min(few ? 84 : 56, (width - left) / drawn.length)),
    whole = Math.max(width, left + wide * drawn.length);
  const svg = canvas(whole, 0, "True class against prediction, by reach");
  const heads = columnHeads(run, drawn, wide);
  const top =
    legend(svg, [{ colour: "--right", text: "right" }, ...seriesOf(run).slice(1)], 0, 12, width) +
    22 +
    heads.high;
  const high = Math.max(24, Math.min(wide, few ? 40 : 30));
  svg.style.minWidth = `${whole}px`;
  svg.setAttribute("viewBox", `0 0 ${whole} ${top + drawn.length * high + 8}`);
  const most = Math.max(
    1,
    ...drawn.flatMap((a) => drawn.map((b) => (a === b ? 0 : cells[a * C + b].n))),
  );
  drawn.forEach((c, j) => {
    svg.append(
      roomy(left - 6, top + (j + 0.5) * high + 4, run.shortClasses[c], left - 20, {
        class: "small",
        "text-anchor": "end",
      }),
      heads.draw(c, left + (j + 0.5) * wide, top - 6),
    );
  });
  svg.append(words(left, top - heads.high - 8, "predicted →", { class: "small muted" }));
  drawn.forEach((a, row) =>
    drawn.forEach((b, column) => {
      const cell = cells[a * C + b];
      if (cell.n)
        svg.append(
          confusionCell(run, cell, a, b, {
            x: left + column * wide,
            y: top + row * high,
            wide,
            high,
            most,
          }),
        );
    }),
  );
  return svg;
}

// Names above the columns; upright where they do not fit across.
function columnHeads(run, drawn, wide) {
  const widths = drawn.map((c) => textWidth(run.shortClasses[c], 11)),
    longest = Math.max(...widths);
  if (longest <= wide - 2)
    return {
      high: 12,
      draw: (c, x, y) =>
        words(x, y, run.shortClasses[c], { class: "small", "text-anchor": "middle" }),
    };
  const high = Math.min(110, longest + 8);
  return {
    high,
    draw: (c, x, y) =>
      roomy(0, 0, run.shortClasses[c], high, {
        class: "small",
        transform: `translate(${x + 4} ${y}) rotate(-90)`,
      }),
  };
}

function confusionCell(run, cell, a, b, { x, y, wide, high, most }) {
  const right = a === b,
    other = cell.n - cell.reachable - cell.open;
  const lines = right
    ? [`${className(run, a)}: ${count(cell.n)} right`]
    : [
        `${className(run, a)} taken for ${className(run, b)}: ${count(cell.n)}`,
        `${count(cell.reachable)} reachable, ${count(other)} unreachable` +
          (cell.open ? `, ${count(cell.open)} without an answer` : ""),
      ];
  const group = shape("g", {
    tip: [...lines, "click to see them"],
    go: { label: String(a), predicted: String(b) },
    "data-cell": `${a} ${b}`,
  });
  const parts = right
    ? [[1, "--right"]]
    : [
        [cell.reachable / cell.n, "--shifted"],
        [other / cell.n, "--rival"],
        [cell.open / cell.n, "--other"],
      ];
  // The area grows with the number, so that rare confusions stay small.
  const size = right ? 1 : 0.25 + 0.75 * Math.sqrt(cell.n / most);
  let from = x + 1;
  group.append(shape("rect", { x, y, width: wide, height: high, class: "cell" }));
  for (const [share, colour] of parts) {
    if (!share) continue;
    group.append(
      shape("rect", {
        x: from,
        y: y + 1 + ((high - 2) * (1 - size)) / 2,
        width: (wide - 2) * share,
        height: (high - 2) * size,
        style: `fill:var(${colour});fill-opacity:${right ? 0.55 : 0.8}`,
      }),
    );
    from += (wide - 2) * share;
  }
  if (wide > 17)
    group.append(
      words(x + wide / 2, y + high / 2 + 4, count(cell.n), {
        class: "small bold halo",
        "text-anchor": "middle",
        style: "pointer-events:none",
      }),
    );
  return group;
}
