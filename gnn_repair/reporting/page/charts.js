// The overview's chart forms. Each draws into a box of a given width.

// Values on a horizontal axis, one row a method: splits as faint dots, mean as the marker with a
// bar of one standard deviation, the published value as a hollow diamond.
function dotPlot(width, rows, unit, each = "split", within = [0, 100], own = "") {
  const left = Math.min(150, width * 0.34),
    right = 64,
    rowHeight = 34;
  const all = rows.flatMap((row) => {
    const { mean, deviation } = momentsOf(row.values);
    return [...row.values, mean - deviation, mean + deviation, row.own, row.paper].filter(known);
  });
  const pad = Math.max(0.5, 0.08 * (Math.max(...all) - Math.min(...all)));
  const low = Math.max(within[0], Math.min(...all) - pad),
    high = Math.min(within[1], Math.max(...all) + pad);
  const spread = rows.some((row) => row.values.length > 1);
  const entries = spread
    ? [
        { look: ["circle", "--frozen"], text: "mean, bar: standard deviation" },
        { look: ["circle", "--other"], text: `one ${each}` },
      ]
    : [];
  if (own && rows.some((row) => known(row.own)))
    entries.push({ look: ["ring", "--what-if"], text: own });
  if (rows.some((row) => known(row.paper)))
    entries.push({ look: ["ring", "--rival-two"], text: "published" });
  const svg = canvas(width, 0, unit);
  const top = entries.length ? legend(svg, entries, 0, 12, width) + 8 : 4;
  const bottom = top + rows.length * rowHeight;
  svg.setAttribute("viewBox", `0 0 ${width} ${bottom + 34}`);
  // Markers at the ends touch neither names nor numbers.
  const x = scale(low, high, left + 4, width - right - 6);
  for (const tick of ticks(low, high, width < 420 ? 3 : 6)) {
    svg.append(shape("line", { x1: x(tick), x2: x(tick), y1: top, y2: bottom, class: "grid" }));
    svg.append(
      words(x(tick), bottom + 15, tickWords(tick), {
        class: "small muted",
        "text-anchor": "middle",
      }),
    );
  }
  svg.append(
    words((left + width - right) / 2, bottom + 31, unit, {
      class: "small muted",
      "text-anchor": "middle",
    }),
  );
  rows.forEach((row, j) =>
    svg.append(dotRow(row, x, top + (j + 0.5) * rowHeight, left, width, each)),
  );
  return svg;
}

function known(value) {
  return value !== null && value !== undefined;
}

function dotRow(row, x, y, left, width, each) {
  const group = shape("g");
  const { mean, deviation } = momentsOf(row.values);
  const several = row.values.length > 1,
    lines = [
      row.title,
      several ? `mean ${mean.toFixed(2)} over ${row.values.length} ${each}s` : mean.toFixed(2),
    ];
  if (row.values.length > 1) lines.push(`standard deviation ${deviation.toFixed(2)}`);
  if (known(row.own)) lines.push(`the model on this page ${row.own.toFixed(2)}`);
  if (known(row.paper))
    lines.push(`published ${row.paper.toFixed(1)} (difference ${signed(mean - row.paper, 1)})`);
  if (row.go) leadTo(group, row.go);
  group.tip = row.go ? [...lines, row.goWords] : lines;
  group.append(shape("rect", { x: 0, y: y - 16, width, height: 32, fill: "transparent" }));
  group.append(words(left - 10, y + 4, shorten(row.title, left - 12), { "text-anchor": "end" }));
  if (row.values.length > 1) {
    for (const value of row.values)
      group.append(
        shape("circle", { cx: x(value), cy: y, r: 3.2, style: "fill:var(--other);opacity:.45" }),
      );
    group.append(
      shape("line", {
        x1: x(mean - deviation),
        x2: x(mean + deviation),
        y1: y,
        y2: y,
        style: `stroke:var(${row.look[1]});stroke-width:3;opacity:.75`,
      }),
    );
  }
  if (known(row.paper)) group.append(marker(["ring", "--rival-two"], x(row.paper), y, 6.5));
  group.append(marker(row.look, x(mean), y, 6));
  if (known(row.own))
    group.append(marker(["ring", "--what-if"], x(row.own), y, 4.5, { "data-own": row.own }));
  group.append(words(width - 56, y + 4, minus(mean.toFixed(1)), { class: "bold" }));
  return group;
}

function momentsOf(values) {
  const mean = values.reduce((sum, v) => sum + v, 0) / values.length;
  const squares = values.reduce((sum, v) => sum + (v - mean) ** 2, 0);
  return { mean, deviation: values.length > 1 ? Math.sqrt(squares / (values.length - 1)) : 0 };
}

// Corrected to the right of a centre line, broken to the left, the rest in words.
function movesPlot(width, rows, total) {
  const left = Math.min(130, width * 0.34),
    right = width < 420 ? 58 : 158,
    rowHeight = 34;
  const most = Math.max(1, ...rows.map((row) => Math.max(row.corrected, row.broken)));
  const svg = canvas(width, 0, "Corrected and broken by method");
  const top =
    legend(
      svg,
      [
        { colour: "--rival", text: "broken" },
        { colour: "--shifted", text: "corrected, evidence was there" },
        { colour: "--node-shifted", text: "corrected, evidence was not there" },
      ],
      0,
      12,
      width,
    ) + 8;
  svg.setAttribute("viewBox", `0 0 ${width} ${top + rows.length * rowHeight + 8}`);
  const half = (width - left - right) / 2,
    centre = left + half,
    step = (half - 40) / most;
  rows.forEach((row, j) => {
    const y = top + (j + 0.5) * rowHeight,
      within = row.within * step,
      beyond = (row.corrected - row.within) * step;
    const bar = (x, wide, colour, go, text) =>
      wide > 0 &&
      svg.append(
        shape("rect", {
          x,
          width: wide,
          y: y - 12,
          height: 24,
          style: `fill:var(${colour})`,
          go,
          tip: [`${row.title}: ${text}`, "click to see them"],
        }),
      );
    svg.append(moveWords(row, y, left, width, total));
    bar(
      centre - row.broken * step,
      row.broken * step,
      "--rival",
      { repair: `${row.j} broken` },
      `${row.broken} broken`,
    );
    bar(
      centre,
      within,
      "--shifted",
      { repair: `${row.j} corrected`, status: "reachable" },
      `${row.within} corrected, evidence was there`,
    );
    bar(
      centre + within,
      beyond,
      "--node-shifted",
      { repair: `${row.j} corrected`, status: "beyond" },
      `${row.corrected - row.within} corrected, evidence was not there`,
    );
    svg.append(
      words(centre - row.broken * step - 5, y + 4, row.broken ? `−${count(row.broken)}` : "0", {
        class: "small",
        "text-anchor": "end",
      }),
      words(
        centre + row.corrected * step + 5,
        y + 4,
        row.corrected ? `+${count(row.corrected)}` : "0",
        { class: "small" },
      ),
    );
  });
  svg.append(
    shape("line", {
      x1: centre,
      x2: centre,
      y1: top,
      y2: top + rows.length * rowHeight,
      class: "zero",
    }),
  );
  return svg;
}

function moveWords(row, y, left, width, total) {
  const net = row.corrected - row.broken,
    unchanged = percent((row.kept + row.missed) / total, 0);
  const group = shape("g", {
    tip: [
      row.title,
      `${row.corrected} corrected (${row.within} of them reachable by reweighting)`,
      `${row.broken} broken`,
      `${row.kept} stay right, ${row.missed} stay wrong`,
    ],
  });
  group.append(
    shape("rect", { x: 0, y: y - 16, width, height: 32, fill: "transparent" }),
    words(left - 10, y + 4, shorten(row.title, left - 12), { "text-anchor": "end" }),
    words(
      width,
      y + 4,
      width < 420 ? `net ${signed(net, 0)}` : `net ${signed(net, 0)}, ${unchanged} unchanged`,
      { class: "small muted", "text-anchor": "end" },
    ),
  );
  return group;
}

// Points in percent by percent with the diagonal; dots are [{x, y, text, size, shown}].
function scatter(width, dots, across, up) {
  const left = 46,
    height = Math.min(320, width * 0.75),
    top = 10,
    bottom = top + height;
  const svg = canvas(width, bottom + 38, `${up} against ${across}`);
  const least = Math.floor(Math.min(...dots.map((d) => Math.min(d.x, d.y))) / 10) * 10,
    low = Math.min(90, Math.max(0, least));
  // Room for a whole dot at either end.
  const x = scale(low, 100, left + 14, width - 26),
    y = scale(low, 100, bottom - 14, top + 14);
  for (const tick of ticks(low, 100, 5)) {
    svg.append(
      shape("line", { x1: left, x2: width - 12, y1: y(tick), y2: y(tick), class: "grid" }),
    );
    svg.append(
      words(left - 6, y(tick) + 4, tickWords(tick), { class: "small muted", "text-anchor": "end" }),
    );
    svg.append(
      words(x(tick), bottom + 15, tickWords(tick), {
        class: "small muted",
        "text-anchor": "middle",
      }),
    );
  }
  svg.append(shape("line", { x1: x(low), y1: y(low), x2: x(100), y2: y(100), class: "axis dash" }));
  svg.append(
    words((left + width) / 2, bottom + 33, across, {
      class: "small muted",
      "text-anchor": "middle",
    }),
  );
  svg.append(
    words(0, 0, up, {
      class: "small muted",
      "text-anchor": "middle",
      transform: `translate(11 ${(top + bottom) / 2}) rotate(-90)`,
    }),
  );
  const taken = dots.map((dot) => ({
    y: y(dot.y),
    from: x(dot.x) - dot.size,
    to: x(dot.x) + dot.size,
  }));
  for (const dot of [...dots].sort((a, b) => b.size - a.size)) {
    const cx = x(dot.x),
      cy = y(dot.y),
      from = cx + dot.size + 3,
      to = from + Math.min(90, textWidth(dot.text, 11));
    svg.append(
      shape(
        "g",
        { tip: dot.tip, go: dot.go },
        // Room for a finger around a small dot.
        shape("circle", { cx, cy, r: Math.max(12, dot.size), fill: "transparent" }),
        shape("circle", {
          cx,
          cy,
          r: dot.size,
          style:
            `fill:var(${dot.shown ? "--rival" : "--true"});` +
            "fill-opacity:.55;stroke:var(--panel)",
        }),
      ),
    );
    const clear =
      to < width && !taken.some((t) => Math.abs(t.y - cy) < 12 && from < t.to && to > t.from);
    if (clear && dots.length <= 40) {
      svg.append(roomy(from, cy + 4, dot.text, 90, { class: "small halo" }));
      taken.push({ y: cy, from, to });
    }
  }
  return svg;
}
