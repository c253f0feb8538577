// A card of the overview, and the forms its chart can have.

// How to draw what lies behind "More charts" once it is open.
const FOLDED = [];
function drawFolded() {
  for (const redraw of FOLDED) redraw();
}

// `scope` says what the numbers are about where that is not the page's own run and nodes; `more`
// puts the card behind the fold.
function chartCard(title, caption, draw, { scope = "", wide, table, more } = {}) {
  const head = element("h2"),
    note = element("p", { class: "caption" }),
    box = element("div", { class: "picture" });
  head.textContent = title;
  note.append(...glossed(`${caption}${scope ? ` (${scope})` : ""}`));
  const card = element(
    "section",
    { class: `panel chart${wide ? " wide" : ""}`, "aria-label": title },
    element("header", { class: "panel-head" }, head, exportTools(title, box, { table })),
    note,
    box,
  );
  byId(more ? "more-charts" : "charts").append(card);
  const redraw = responsive(box, (width) => {
    const made = draw(width);
    box.replaceChildren(made);
    roam(made);
  });
  if (more) FOLDED.push(redraw);
  return card;
}

// One stop for the Tab key a picture; arrows walk through the marks that lead to nodes.
function roam(picture) {
  const marks = [...picture.querySelectorAll(".go")];
  for (const mark of marks) {
    if (mark.hasAttribute("aria-label") || !Array.isArray(mark.tip)) continue;
    // The name begins with what is seen, as people who speak to the page expect.
    const seen = [...mark.querySelectorAll("text")].map((text) => text.textContent).join("");
    mark.setAttribute("aria-label", [...(seen ? [seen] : []), ...mark.tip].join(", "));
  }
  if (!marks.length) return;
  marks[0].setAttribute("tabindex", "0");
  picture.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key],
      at = marks.indexOf(event.target);
    if (!by || at < 0) return;
    event.preventDefault();
    event.stopPropagation();
    const next = marks[(at + by + marks.length) % marks.length];
    event.target.setAttribute("tabindex", "-1");
    next.setAttribute("tabindex", "0");
    next.focus();
  });
}

function legend(svg, entries, x, y, width) {
  let left = x,
    top = y;
  for (const { colour, look, line, text } of entries) {
    const room = 30 + textWidth(text, 11);
    if (left + room > width && left > x) {
      left = x;
      top += 18;
    }
    svg.append(
      look
        ? marker(look, left + 6, top - 4, 5)
        : shape("rect", {
            x: left,
            y: line ? top - 5 : top - 9,
            width: 11,
            height: line ? 2.5 : 11,
            rx: line ? 0 : 2,
            style: `fill:var(${colour})`,
          }),
    );
    svg.append(words(left + 16, top, text, { class: "small muted" }));
    left += room;
  }
  return top + 8;
}

// The overview's chart forms. Each draws into a box of a given width.

// Values on a horizontal axis, one row per method: splits as faint dots, mean as the marker with a
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
  const left = Math.min(150, width * 0.34),
    right = width < 420 ? 58 : 158,
    // Few rows are higher, for the card beside them is about as high as this.
    rowHeight = Math.max(34, Math.min(72, 230 / rows.length)),
    thick = Math.min(40, rowHeight - 10);
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
          y: y - thick / 2,
          height: thick,
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
    right = (row.kept + row.corrected) / total;
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
      width < 420 ? `${percent(right)}` : `net ${signed(net, 0)}, ${percent(right)} right`,
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
      off = dot.size + 3,
      wide = Math.min(90, textWidth(dot.text, 11)),
      chance = known(dot.chance) ? y(dot.chance) : null;
    svg.append(
      shape(
        "g",
        { tip: dot.tip, go: dot.go },
        chance &&
          shape("line", { x1: cx - 8, x2: cx + 8, y1: chance, y2: chance, class: "chance" }),
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
    // Behind the dot or before it, else above or below, where nothing is in the way.
    const places = [[off], [-off - wide], [-off, -off - 9], [-off, off + 9]].map(
      ([dx, dy = 0]) => ({ y: cy + dy, from: cx + dx, to: cx + dx + wide }),
    );
    const meets = (a) => (b) => Math.abs(a.y - b.y) < 12 && a.from < b.to && a.to > b.from,
      place = places.find((p) => p.from > left && p.to < width && !taken.some(meets(p)));
    if (place && dots.length <= 40) {
      svg.append(roomy(place.from, place.y + 4, dot.text, 90, { class: "small halo" }));
      taken.push(place);
    }
  }
  return svg;
}

// Columns and histograms of the overview.

// Which bins are labelled: as many as have room, among them the one at `from`.
function namedBins(bins, wide, from) {
  const widest = Math.max(...bins.map((bin) => textWidth(bin.label, 11))) + 10,
    every = Math.ceil(widest / wide);
  return (j) => bins[j].label && (j - from) % every === 0;
}

// Room for a name below its column; longer ones are cut.
const MOST_UPRIGHT = 130;

// Columns of parts; `bins` is [{label, isName, parts: [n, …], tip, chance}], `series` names and
// colours the parts, `chance` is the height to which chance would fill a column of shares.
// With `marks` it is a histogram: labels stand at the left edge of their bin.
function stackedColumns(width, bins, series, axis, share, marks = null) {
  const left = 40,
    height = 210;
  const svg = canvas(width, 0, axis);
  const chance = bins.some((bin) => known(bin.chance))
    ? [{ colour: "--ink", line: true, text: "chance: where the green would end" }]
    : [];
  const top = legend(svg, [...series, ...chance], 0, 12, width) + (marks ? 22 : 14),
    bottom = top + height;
  const totals = bins.map((bin) => bin.parts.reduce((sum, n) => sum + n, 0));
  const most = share ? 1 : Math.max(1, ...totals);
  const y = scale(0, most, bottom, top),
    wide = (width - left) / bins.length;
  for (const tick of ticks(0, most, share ? 4 : Math.min(5, most))) {
    svg.append(shape("line", { x1: left, x2: width, y1: y(tick), y2: y(tick), class: "grid" }));
    svg.append(
      words(left - 6, y(tick) + 4, share ? `${Math.round(100 * tick)} %` : count(tick), {
        class: "small muted",
        "text-anchor": "end",
      }),
    );
  }
  const longest = Math.max(...bins.map((bin) => textWidth(bin.label, 11))),
    // Every name is written, upright where it does not fit across; of numbers some suffice.
    upright = bins.every((bin) => bin.isName) && longest > wide - 6 && wide >= 12,
    deep = upright ? Math.min(MOST_UPRIGHT, longest) + 6 : 15;
  const named = namedBins(bins, wide, marks ? marks[0].place : 0);
  svg.setAttribute("viewBox", `0 0 ${width} ${bottom + deep + 25}`);
  bins.forEach((bin, j) => {
    const group = shape("g");
    const lines = [
      bin.tip || bin.label,
      ...series.map(
        (entry, s) =>
          `${entry.text}: ${bin.parts[s]}` +
          (totals[j] ? ` (${percent(bin.parts[s] / totals[j], 0)})` : ""),
      ),
      ...(bin.chanceWords ? [bin.chanceWords] : []),
    ];
    const some = totals[j] && bin.go;
    group.append(
      shape("rect", {
        x: left + j * wide,
        y: top,
        width: wide,
        height,
        fill: "transparent",
        tip: some ? [...lines, "click to see them"] : lines,
        go: some ? bin.go : null,
      }),
    );
    let at = 0;
    bin.parts.forEach((n, s) => {
      const size = share ? (totals[j] ? n / totals[j] : 0) : n;
      const gap = Math.min(6, wide * 0.08);
      if (size)
        group.append(
          shape("rect", {
            x: left + j * wide + gap,
            width: wide - 2 * gap,
            y: y(at + size),
            height: y(at) - y(at + size),
            style: `fill:var(${series[s].colour})`,
            tip: [
              bin.tip || bin.label,
              `${series[s].text}: ${n}`,
              ...(bin.go ? ["click to see them"] : []),
            ],
            go: bin.go ? { ...bin.go, ...series[s].go } : null,
          }),
        );
      at += size;
    });
    if (known(bin.chance))
      group.append(
        shape("line", {
          x1: left + j * wide + 1,
          x2: left + (j + 1) * wide - 1,
          y1: y(bin.chance),
          y2: y(bin.chance),
          class: "chance",
          "data-chance": bin.chance,
        }),
      );
    if (upright) {
      const x = left + (j + 0.5) * wide + 4;
      svg.append(
        roomy(0, 0, bin.label, MOST_UPRIGHT, {
          class: "small muted",
          "text-anchor": "end",
          transform: `translate(${x} ${bottom + 6}) rotate(-90)`,
        }),
      );
    } else if (named(j)) {
      const half = textWidth(bin.label, 11) / 2;
      svg.append(
        words(Math.min(width - half, left + (marks ? j : j + 0.5) * wide), bottom + 15, bin.label, {
          class: "small muted",
          "text-anchor": "middle",
        }),
      );
    }
    if (share && totals[j] && textWidth(count(totals[j]), 11) + 4 < wide)
      group.append(
        words(left + (j + 0.5) * wide, top - 3, count(totals[j]), {
          class: "small muted",
          "text-anchor": "middle",
        }),
      );
    svg.append(group);
  });
  for (const { place, text } of marks || []) {
    const at = left + place * wide,
      end = at > width * 0.6;
    svg.append(shape("line", { x1: at, x2: at, y1: top - 14, y2: bottom, class: "zero dash" }));
    svg.append(
      words(at + (end ? -5 : 5), top - 6, text, {
        class: "small halo",
        "text-anchor": end ? "end" : "start",
      }),
    );
  }
  svg.append(
    words((left + width) / 2, bottom + deep + 18, axis, {
      class: "small muted",
      "text-anchor": "middle",
    }),
  );
  return svg;
}

// Shares that grow with a limit: for each line how many of its values are at most x.
function risingLines(width, lines) {
  const left = 44,
    height = 220,
    svg = canvas(width, 0, "Errors fixed by moving at most so much weight"),
    top = legend(svg, lines, 0, 12, width) + 8,
    bottom = top + height,
    x = scale(0, 1, left, width - 12),
    most = Math.max(...lines.map((line) => line.values.length / line.of)),
    high = Math.min(1, Math.ceil(10 * most + 0.3) / 10),
    y = scale(0, high, bottom, top);
  svg.setAttribute("viewBox", `0 0 ${width} ${bottom + 38}`);
  for (const tick of ticks(0, high, 5))
    svg.append(
      shape("line", { x1: left, x2: width - 12, y1: y(tick), y2: y(tick), class: "grid" }),
      words(left - 6, y(tick) + 4, `${Math.round(100 * tick)} %`, {
        class: "small muted",
        "text-anchor": "end",
      }),
    );
  for (const tick of width < 420 ? [0, 0.25, 0.5, 0.75, 1] : [0, 0.1, 0.25, 0.5, 0.75, 1])
    svg.append(
      shape("line", { x1: x(tick), x2: x(tick), y1: bottom, y2: bottom + 4, class: "axis" }),
      words(x(tick), bottom + 16, `${100 * tick} %`, {
        class: "small muted",
        "text-anchor": tick === 1 ? "end" : "middle",
      }),
    );
  svg.append(
    words((left + width) / 2, bottom + 33, "weight that may move", {
      class: "small muted",
      "text-anchor": "middle",
    }),
  );
  for (const line of lines) {
    const sorted = [...line.values].sort((a, b) => a - b),
      step = Math.max(1, Math.floor(sorted.length / 400));
    let outline = `M${x(0)},${y(0)}`;
    sorted.forEach((value, j) => {
      if (j % step && j !== sorted.length - 1) return;
      outline += `H${x(Math.min(1, value)).toFixed(1)}V${y((j + 1) / line.of).toFixed(1)}`;
    });
    const within = (limit) => sorted.filter((value) => value <= limit).length / line.of;
    svg.append(
      shape("path", {
        d: `${outline}H${x(1)}`,
        "data-line": line.text,
        go: line.go,
        style: `fill:none;stroke:var(${line.colour});stroke-width:2.5`,
        tip: [
          line.text,
          ...[0.1, 0.25, 0.5, 1].map(
            (limit) => `at most ${100 * limit} %: ${percent(within(limit))}`,
          ),
        ],
      }),
    );
  }
  return svg;
}
