// Columns and histograms of the overview.

// Which bins are labelled: as many as have room, among them the one at `from`.
function namedBins(bins, wide, from) {
  const widest = Math.max(...bins.map((bin) => textWidth(bin.label, 11))) + 10,
    crowded = bins.length > 12 ? Math.ceil(bins.length / 8) : 1,
    every = Math.max(crowded, Math.ceil(widest / wide));
  return (j) => bins[j].label && (j - from) % every === 0;
}

// Columns of parts; `bins` is [{label, parts: [n, …], tip}], `series` names and colours the parts.
// With `marks` it is a histogram: labels stand at the left edge of their bin.
function stackedColumns(width, bins, series, axis, share, marks = null) {
  const left = 40,
    height = 210;
  const svg = canvas(width, 0, axis);
  const top = legend(svg, series, 0, 12, width) + (marks ? 22 : 14),
    bottom = top + height;
  svg.setAttribute("viewBox", `0 0 ${width} ${bottom + 40}`);
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
  const named = namedBins(bins, wide, marks ? marks[0].place : 0);
  bins.forEach((bin, j) => {
    const group = shape("g");
    const lines = [
      bin.tip || bin.label,
      ...series.map(
        (entry, s) =>
          `${entry.text}: ${bin.parts[s]}` +
          (totals[j] ? ` (${percent(bin.parts[s] / totals[j], 0)})` : ""),
      ),
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
    if (named(j)) {
      const half = textWidth(bin.label, 11) / 2;
      svg.append(
        words(Math.min(width - half, left + (marks ? j : j + 0.5) * wide), bottom + 15, bin.label, {
          class: "small muted",
          "text-anchor": "middle",
        }),
      );
    }
    if (share && totals[j])
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
    words((left + width) / 2, bottom + 33, axis, { class: "small muted", "text-anchor": "middle" }),
  );
  return svg;
}
