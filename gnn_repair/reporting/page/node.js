// A node in words and numbers: its head line, its certificate, its predictions, its logits.

function drawHead(node) {
  const { run } = node,
    title = element("h2");
  title.textContent = titled(run, node.id);
  const fact = (name, value) => {
    const made = element("span"),
      strong = element("b");
    strong.textContent = value;
    made.append(`${name} `, strong);
    return made;
  };
  const facts = element(
    "div",
    { class: "facts" },
    // A link and a command ask for the number.
    ...(nodeName(run, node.id) === String(node.id) ? [] : [fact("number", String(node.id))]),
    fact("true class", bareClass(run, node.label)),
    fact("frozen model predicts", className(run, node.predicted)),
    fact(run.graph_starts ? "nodes" : "degree", count(run.degree[node.i])),
    ...(run.graph_starts || Number.isNaN(run.homophily[node.i])
      ? []
      : [fact("neighbours of its class", percent(run.homophily[node.i], 0))]),
    fact("terms", count(node.count)),
  );
  byId("node-head").replaceChildren(title, facts);
}

function joined(parts) {
  return parts.length < 2
    ? parts.join("")
    : `${parts.slice(0, -1).join(", ")} and ${parts[parts.length - 1]}`;
}

function supportWords(node) {
  const { run } = node,
    active = [];
  for (let k = 0; k < node.count; k++) if (node.witness[k] > ACTIVE) active.push(k);
  active.sort(
    (a, b) =>
      node.witness[b] / node.mass[node.group[b]] - node.witness[a] / node.mass[node.group[a]],
  );
  return joined(
    active.map((k) => {
      const source = sourceOf(node, k),
        who = senderWords(node, source);
      const share = percent(node.witness[k] / node.mass[node.group[k]], 0);
      return `${who} (${share}${run.groupCount > 1 ? ` of ${run.groups[node.group[k]]}` : ""})`;
    }),
  );
}

function rivalClause(node) {
  const parts = [];
  node.weights.forEach((w, r) => {
    if (w > 1e-9) parts.push([w, r]);
  });
  parts.sort((a, b) => b[0] - a[0]);
  if (parts.length === 1) return `against ${className(node.run, parts[0][1])} alone`;
  const sentence = parts.map(([w, r]) => {
    const share = percent(w, w > 0.995 || w < 0.095 ? 1 : 0);
    return `${share} ${className(node.run, r)}`;
  });
  return `weighing the rivals ${joined(sentence)}`;
}

// What was shown about a node of a model with a nonlinear head: can, cannot or undecided.
function headWords(node) {
  const { run, i } = node,
    name = className(run, node.label),
    found = run.head_margin[i],
    bound = run.head_bound[i];
  const verdict = headVerdict(run, i),
    limit = Number.isNaN(bound)
      ? "No upper bound is known"
      : `No reweighting exceeds ${figure(bound, 4)} (proved)`;
  const who = run.head.replayed
    ? "the model itself, run with these weights, says so"
    : "its head, recomputed, says so; the model itself was not at hand";
  if (!verdict) return [`The oracle was not asked about this ${run.noun}.`, ""];
  if (!node.count && run.kept[i])
    return [`Nothing can be reweighted here: the margin of ${name} stays ${figure(found)}.`, ""];
  const using = node.count
    ? supportWords(node)
    : "terms that were left out to keep this file small";
  if (verdict === "can") {
    const now = node.points[0].margin;
    const lead =
      now > 0
        ? `${name} wins by ${figure(now, 2)} and could win by ${figure(found, 2)}`
        : `${name} can win by ${figure(found, 2)}`;
    return [`${lead} using ${using}: ${who}.`, `${limit}. The largest margin lies in between.`];
  }
  if (verdict === "cannot")
    return [
      `${name} cannot win: every reweighting ` +
        (bound < -REACHABLE ? `loses by at least ${figure(-bound, 2)}` : "ties at best") +
        ", as bounds of the head prove.",
      `The best that was found has margin ${figure(found, 4)}, using ${using}.`,
    ];
  const between = Number.isNaN(bound)
    ? `is at least ${figure(found, 3)}, and no upper bound is known`
    : `lies between ${figure(found, 3)} and ${figure(bound, 3)}`;
  return [
    `It is undecided whether ${name} can win: its largest margin ${between}.`,
    `Why: ${run.head.reasons[String(i)] || "not said"}. The best found uses ${using}.`,
  ];
}

// The certificate as [what holds, how to check it].
function certificateWords(node) {
  if (node.run.head) return headWords(node);
  const { run, i } = node,
    name = className(run, node.label),
    margin = run.margins[i];
  if (Number.isNaN(margin)) return [`The oracle has no answer for this ${run.noun}.`, ""];
  if (!node.count) {
    const held = run.lengths.length && run.kept[i] === 0;
    if (!held) {
      return [`Nothing can be reweighted here: the margin of ${name} stays ${figure(margin)}.`, ""];
    }
    let verdict = "ties at best; its margin is";
    if (margin > REACHABLE) verdict = "can win by";
    else if (margin < -REACHABLE) verdict = "cannot win; its best margin is";
    const sentence = `${name} ${verdict} ${figure(margin)}.`;
    return [sentence, "Its terms were left out to keep this file small."];
  }
  const oracle = node.points.find((point) => point.key === "oracle");
  const proof =
    `Checked in this page: the mixture's worst margin is ${figure(oracle.margin, 4)} ` +
    `(against ${className(run, oracle.rival)}); ${rivalClause(node)}, ` +
    `no admissible mixture scores above ${figure(boundOf(node), 4)}.`;
  if (margin > REACHABLE) {
    const now = node.points[0].margin;
    const lead =
      now > 0
        ? `${name} wins by ${figure(now, 2)} and could win by ${figure(margin, 2)}`
        : `${name} can win by ${figure(margin, 2)}`;
    return [`${lead} using ${supportWords(node)}.`, proof];
  }
  const verdict = margin < -REACHABLE ? "cannot win" : "ties at best";
  return [
    `${name} ${verdict}: ${rivalClause(node)}, ` +
      `no mixture scores above ${figure(boundOf(node), 2)}.`,
    `Checked in this page: the best mixture, ${supportWords(node)}, still has margin ` +
      `${figure(oracle.margin, 4)} (against ${className(run, oracle.rival)}), and the bound from ` +
      `the rival weights is ${figure(boundOf(node), 4)}.`,
  ];
}

// A share of the weight in as many digits as are read: "12 %", "0.9 %", with zeros "0.90 %".
function shareWords(share, digits = 2, zeros = false) {
  const value = 100 * share;
  if (value >= 99.5 || value === 0) return `${value.toFixed(0)} %`;
  const text = value.toPrecision(digits);
  return `${zeros ? text : Number(text)} %`;
}

// Who gets more weight in a mixture: [[source, share now, share then], …], the largest gain first.
function gainsOf(node, lambda) {
  const total = node.mass.reduce((sum, mass) => sum + mass, 0) || 1,
    bySource = new Map();
  for (let k = 0; k < node.count; k++) {
    const entry = bySource.get(sourceOf(node, k)) || [0, 0];
    entry[0] += node.alpha[k] / total;
    entry[1] += lambda[k] / total;
    bySource.set(sourceOf(node, k), entry);
  }
  return [...bySource]
    .map(([source, [now, then]]) => [source, now, then])
    .filter(([, now, then]) => then - now > 1e-7)
    .sort((a, b) => b[2] - b[1] - (a[2] - a[1]));
}

function movedShare(node, lambda) {
  const total = node.mass.reduce((sum, mass) => sum + mass, 0) || 1;
  let sum = 0;
  for (let k = 0; k < node.count; k++) sum += Math.abs(lambda[k] - node.alpha[k]) / 2;
  return sum / total;
}

const NAMED_SENDERS = 3;
// The share of all gains that a named one exceeds; smaller ones are counted.
const NAMED_ABOVE = 0.01;

// "Giving 12 % of the weight (now 0.90 %) to node 322".
function gainWords(node, lambda) {
  const gains = gainsOf(node, lambda),
    least = NAMED_ABOVE * gains.reduce((sum, [, now, then]) => sum + then - now, 0),
    named = gains.slice(0, NAMED_SENDERS).filter(([, now, then]) => then - now > least),
    parts = named.map(([source, now, then]) => {
      // As many digits in both as tell the two apart.
      const digits = [2, 3, 4].find((d) => shareWords(now, d) !== shareWords(then, d)) ?? 5;
      const who = source === node.id ? "its own message" : senderWords(node, source);
      const [before, after] = [now, then].map((share) => shareWords(share, digits, true));
      return `${after} of the weight (now ${before}) to ${who}`;
    }),
    more = gains.length - parts.length;
  if (more > 0) parts.push(`a little more to ${more} more sender${more > 1 ? "s" : ""}`);
  return parts.length
    ? `Giving ${joined(parts)}`
    : "Moving weight between the same senders' messages";
}

const PLACES = ["least", "second-least", "third-least", "fourth-least", "fifth-least"];

// Classes that could win beside the predicted one: [[class, share of weight to move], …], the least
// change first; null where nobody asked.
function classesInReach(node) {
  const { run, i } = node;
  if (!run.asked || !run.asked[i]) return null;
  const last = (share) => (Number.isNaN(share) ? Infinity : share);
  return sparse(run, "class_shares", i).sort((a, b) => last(a[1]) - last(b[1]));
}

// How special it is that the true class could win.
function specialWords(node) {
  const { run, i } = node,
    could = classesInReach(node);
  if (!could) return "";
  const right = node.predicted === node.label,
    open = run.class_open[i],
    more = open ? `; of ${open} more it is undecided` : "";
  if (!could.length) return right && !open ? "No other class could win here." : "";
  const place = could.findIndex(([c]) => c === node.label),
    ranked = place >= 0 && could.length > 1 && could.every(([, share]) => !Number.isNaN(share)),
    which = PLACES[place] || `${place + 1}th-least`;
  const name = className(run, node.label);
  const howMany = `${could.length + 1} of ${run.classCount} classes could win here`;
  return `${howMany}${ranked ? `; ${name} needs the ${which} change` : ""}${more}.`;
}

// Who stands in the way, where no weighting of the messages makes the true class win.
function rivalWords(node) {
  const { run, i } = node,
    name = className(run, node.label),
    rivals = Array.from(node.weights.keys())
      .filter((r) => node.weights[r] > 0.01)
      .sort((a, b) => node.weights[b] - node.weights[a]);
  const loss = run.head ? run.head_bound[i] : run.margins[i],
    behind = loss < -REACHABLE ? ` by at least ${figure(-loss, 2)}` : ", or ties with it";
  if (!rivals.length) return [`whatever the weights, ${name} stays behind${behind}`, ""];
  const who = rivals.map((r) => className(run, r));
  if (who.length === 1)
    return [`whatever the weights, these messages favour ${who[0]} over ${name}${behind}`, ""];
  const either = `${who.slice(0, -1).join(", ")} or ${who[who.length - 1]}`;
  return [
    `whatever the weights, ${either} stays ahead of ${name}${behind}`,
    `Messages that would help ${name} against one of them help another.`,
  ];
}

// A node in words anyone knows: [what holds and the smallest change, what that means].
function headline(node) {
  const { run, i } = node,
    own = className(run, node.label),
    verdict = run.head
      ? headVerdict(run, i)
      : Number.isNaN(run.margins[i])
        ? null
        : isReachable(run, i)
          ? "can"
          : "cannot";
  const special = specialWords(node);
  if (node.predicted === node.label)
    return [`Predicted ${own}, which is right.`, special || freeWords(node, verdict)];
  const head = `Predicted ${className(run, node.predicted)}, true ${own}.`;
  if (!verdict) return [`${head} Whether other weights would fix it is not known.`, special];
  if (!node.count && run.kept[i])
    return [`${head} No message that could be reweighted arrives here.`, ""];
  if (verdict === "can" && node.nearest) {
    const much = `${shareWords(movedShare(node, node.nearest))} of the weight moves.`;
    return [
      `${head} ${gainWords(node, node.nearest)} would be enough to fix it.`,
      `${much} ${special}`,
    ];
  }
  if (verdict === "can")
    return [`${head} Other weights for the same messages would fix it.`, special];
  if (verdict === "undecided")
    return [
      `${head} It is undecided whether other weights for these messages would fix it.`,
      special,
    ];
  const [why, also] = rivalWords(node);
  const meaning =
    `The evidence for ${own} is not in these messages, so other weights cannot help; a repair ` +
    "that shifts the logits, or a change in an earlier layer, could.";
  return [
    `${head} No weighting of these messages can fix it: ${why}.`,
    [also, meaning, special].filter(Boolean).join(" "),
  ];
}

function freeWords(node, verdict) {
  return verdict === "can" ? `Its lead is ${figure(node.points[0].margin, 2)}.` : "";
}

const MOST_CHIPS = 8;

// Every class that could win, with the share of the weight that must move for it.
function classChips(node) {
  const could = classesInReach(node);
  // One class alone is in the sentence above.
  if (!could || could.length < 2 || could.every(([, share]) => Number.isNaN(share))) return null;
  const list = element("ul", { class: "chips", "aria-label": "Classes that could win" });
  const lead = element("li", { class: "chips-lead" });
  lead.textContent = "Weight that must move for";
  list.append(lead);
  for (const [c, share] of could.slice(0, MOST_CHIPS)) {
    const name = element("span"),
      much = element("b"),
      own = c === node.label;
    name.textContent = className(node.run, c);
    much.textContent = Number.isNaN(share) ? "?" : shareWords(share);
    const parts = own ? [name, " (true) ", much] : [name, " ", much];
    const tip = Number.isNaN(share)
      ? ["It can win; how much must move for it was not asked"]
      : null;
    list.append(element("li", { class: own ? "chip true" : "chip", tip }, ...parts));
  }
  if (could.length > MOST_CHIPS) {
    const more = element("li");
    more.textContent = `and ${could.length - MOST_CHIPS} more`;
    list.append(more);
  }
  return list;
}

let proofOpen = false;

function drawCertificate(node) {
  const panel = byId("certificate"),
    [lead, meaning] = headline(node),
    [verdict, proof] = certificateWords(node);
  const open = headVerdict(node.run, node.i) === "undecided",
    won = node.run.margins[node.i] > REACHABLE ? "reachable" : "unreachable",
    right = node.predicted === node.label;
  panel.className = `panel certificate ${open ? "undecided" : right ? "right" : won}`;
  const text = (tag, kind, content) => {
    const made = element(tag, { class: kind });
    made.textContent = content;
    return made;
  };
  const title = text("summary", "", "Largest margin, and the proof"),
    shown = proofOpen ? "" : null;
  const details = element(
    "details",
    { open: shown, id: "proof", ontoggle: () => (proofOpen = details.open) },
    title,
    text("p", "verdict", verdict),
    ...(proof ? [text("p", "caption", proof)] : []),
  );
  panel.replaceChildren(
    text("p", "headline", lead),
    ...(meaning ? [text("p", "meaning", meaning)] : []),
    ...[classChips(node)].filter(Boolean),
    details,
  );
}

// One row per prediction, with a box that draws or hides it; returns how to refresh the what-if.
function drawReadout(node, hidden, onToggle) {
  const table = element("table"),
    body = element("tbody");
  const head = element("tr");
  for (const [text, kind] of [
    ["drawn", "text"],
    ["predicts", "text"],
    ["margin", ""],
  ]) {
    const cell = element("th", { class: kind });
    cell.textContent = text;
    head.append(cell);
  }
  table.append(element("thead", {}, head), body);
  node.points.forEach((point) =>
    body.append(
      readoutRow(node, point, lookOf(point.key, point.kind, point.place), hidden, onToggle),
    ),
  );
  const place = element("tr");
  body.append(place);
  byId("readout").replaceChildren(table);
  let row = place;
  return (logits) => {
    if (node.run.head) return;
    const point = { key: "what_if", title: "What if", ...verdictOf(logits, node.label) };
    const next = readoutRow(node, point, LOOKS.get("what_if"));
    next.id = "what-if-row";
    row.replaceWith(next);
    row = next;
  };
}

function readoutRow(node, point, look, hidden, onToggle) {
  const right = point.predicted === node.label;
  const box =
    hidden &&
    element("input", {
      type: "checkbox",
      checked: hidden.has(point.key) ? null : "",
      "data-draw": point.key,
      onchange: () => onToggle(point.key, box.checked),
    });
  const named = element("span", { class: "method" });
  named.textContent = point.title;
  const title = element(
    "td",
    { class: "text" },
    element("label", {}, box || element("span", { class: "no-box" }), keyOf(look), named),
  );
  const says = element("td", { class: `text ${right ? "yes" : "no"}` });
  says.textContent = `${right ? "✓" : "✕"} ${className(node.run, point.predicted)}`;
  const margin = element("td", { "data-margin": point.key });
  margin.textContent = point.key === "nearest" ? "just wins" : signed(point.margin, 3);
  return element(
    "tr",
    {
      tip: [
        point.title,
        `worst rival of ${className(node.run, node.label)}: ${className(node.run, point.rival)}`,
      ],
    },
    title,
    says,
    margin,
  );
}

// Centred logits, one line per class, the strongest first; returns how to move the what-if marks.
function drawLogits(box, width, node, whatIf, hidden) {
  const C = node.run.classCount,
    points = node.points.filter((point) => !hidden.has(point.key)),
    lines = points.map((point) => centred(point.logits));
  const best = (c) => Math.max(...lines.map((line) => line[c]));
  const order = Array.from({ length: C }, (_, c) => c)
    .sort((a, b) => best(b) - best(a))
    .slice(0, 24);
  const step = C > 12 ? 19 : 24,
    left = Math.min(120, width * 0.34),
    bottom = 8 + order.length * step;
  const svg = canvas(width, bottom + 22, "Centred logits by class");
  const seen = lines.flatMap((line) => order.map((c) => line[c]));
  const [low, high] = padded(seen),
    x = scale(low, high, left, width - 10),
    roleOf = rolesOf(node);
  for (const tick of ticks(low, high, 4)) {
    svg.append(shape("line", { x1: x(tick), x2: x(tick), y1: 4, y2: bottom, class: "grid" }));
    svg.append(
      words(x(tick), bottom + 15, tickWords(tick), {
        class: "small muted",
        "text-anchor": "middle",
      }),
    );
  }
  const heights = new Map();
  order.forEach((c, j) => {
    const y = 8 + (j + 0.5) * step,
      role = roleOf(c);
    heights.set(c, y);
    svg.append(
      roomy(left - 9, y + 4, className(node.run, c), left - 11, {
        "text-anchor": "end",
        class: role === "other" ? "small muted" : "small bold",
        style: role === "other" ? null : `fill:var(--${role}-text)`,
      }),
    );
    svg.append(shape("line", { x1: left, x2: width - 10, y1: y, y2: y, class: "grid" }));
    for (let p = points.length - 1; p >= 0; p--) {
      const point = points[p];
      svg.append(
        marker(lookOf(point.key, point.kind, point.place), x(lines[p][c]), y, 5, {
          tip: [className(node.run, c), `${point.title}: ${signed(lines[p][c], 3)}`],
        }),
      );
    }
  });
  const moving = shape("g");
  svg.append(moving);
  const move = (logits, shown) => {
    const line = centred(logits);
    moving.replaceChildren(
      ...(shown
        ? order.map((c) =>
            marker(
              LOOKS.get("what_if"),
              Math.min(width - 10, Math.max(left, x(line[c]))),
              heights.get(c),
              5.5,
            ),
          )
        : []),
    );
  };
  move(whatIf.logits, whatIf.touched);
  box.replaceChildren(svg);
  return move;
}

// What is drawn at first: the frozen model, the oracle, the smallest change, reweighting, the best
// repair, and one translation: of the message set where there is one, for it moves the polytope.
function hiddenAtFirst(run) {
  const shifts = run.repairs.filter((repair) => repair.kind === "shift"),
    shift = shifts.find((repair) => !NODE_ONLY.has(repair.key)) || shifts[0];
  const best = bestRepairOf(run);
  return new Set(
    run.repairs
      .filter((repair) => repair.kind !== "coefficients" && repair !== shift)
      .filter((repair) => !best || repair !== run.repairs[best.j])
      .map((repair) => repair.key),
  );
}
