// The first screen: the page's story in a sentence with its own numbers, and where to start.

function tally(run) {
  if (run.sums) return run.sums;
  const sums = {
    right: 0,
    reachable: 0,
    unreachable: 0,
    undecided: 0,
    unknown: 0,
    reach: 0,
    support: 0,
    solved: 0,
    open: 0,
  };
  for (let i = 0; i < run.count; i++) {
    sums[statusOf(run, i)]++;
    if (headVerdict(run, i) === "undecided") sums.open++;
    if (!Number.isNaN(run.margins[i])) sums.solved++;
    if (isReachable(run, i)) {
      sums.reach++;
      sums.support += run.support[i];
    }
  }
  run.sums = sums;
  return sums;
}

function outcomesOf(run, j) {
  const row = {
    j,
    title: run.repairs[j].title,
    corrected: 0,
    broken: 0,
    kept: 0,
    missed: 0,
    within: 0,
  };
  for (let i = 0; i < run.count; i++) {
    const outcome = outcomeOf(run, run.repairs[j], i);
    row[outcome]++;
    if (outcome === "corrected" && isReachable(run, i)) row.within++;
  }
  return row;
}

// The repair that was best on validation nodes; where none were given, the only one, or the one
// with the most right answers on these very nodes, which `chosen` admits. Null: there is none, or
// none gains there.
function bestRepairOf(run) {
  if (run.bestRepair === undefined) run.bestRepair = findBest(run);
  return run.bestRepair;
}
function findBest(run) {
  if (!run.repairs.length) return null;
  if (run.best) {
    const j = run.repairs.findIndex((repair) => repair.key === run.best.key);
    const chosen = `chosen on ${count(run.best.nodes)} validation ${run.nouns}`;
    return j < 0 ? null : { ...outcomesOf(run, j), chosen };
  }
  const rows = run.repairs.map((_, j) => outcomesOf(run, j)),
    best = rows.sort((a, b) => b.corrected - b.broken - (a.corrected - a.broken))[0];
  return {
    ...best,
    chosen: rows.length > 1 ? `the most of all repairs on these ${run.nouns}` : "",
  };
}

// A typical error: its evidence is there in more than one term, the best repair mends it, and its γ
// is the middle one.
function startNode(run) {
  const best = bestRepairOf(run);
  const nodes = Array.from({ length: run.explored }, (_, i) => i);
  const good = nodes.filter((i) => statusOf(run, i) === "reachable" && run.kept[i]);
  const mended = best
    ? good.filter((i) => outcomeOf(run, run.repairs[best.j], i) === "corrected")
    : [];
  const among = mended.length ? mended : good,
    rich = among.filter((i) => run.support[i] > 1);
  const choice = rich.length ? rich : among;
  // In order of γ already.
  return choice.length ? choice[Math.floor(choice.length / 2)] : 0;
}

function storySentence(run) {
  const sums = tally(run),
    wrong = run.count - sums.right,
    best = bestRepairOf(run);
  if (!wrong)
    return run.count === 1
      ? `The frozen model is right about the only ${selected(run)}.`
      : `The frozen model is right about all ${count(run.count)} ${selected(run)}.`;
  const text = wrong === 1 ? oneError(run, sums) : manyErrors(run, sums, wrong);
  return `${text}${best ? bestWords(run, best) : run.best ? noneGains(run) : ""}.`;
}

function manyErrors(run, sums, wrong) {
  const who = `${count(wrong)} of ${count(run.count)} ${selected(run)} are wrong`,
    open = count(sums.undecided),
    there = sums.reachable ? count(sums.reachable) : "none";
  // What is undecided may be there: "none of them" would deny it.
  if (sums.undecided && !sums.reachable)
    return `${who}; for ${open} of them it is undecided whether the evidence was there`;
  const more = sums.undecided ? ` and for ${open} it is undecided` : "";
  return `${who}; for ${there} of them the evidence was there${more}${besideChance(run, sums)}`;
}

// Reach says nothing by itself: how often another class could win stands beside it.
function besideChance(run, sums) {
  const summary = run.chance_summary;
  if (!summary || !sums.reachable) return "";
  if (!summary.above) return `, not clearly more often than by chance (${chanceShare(summary)})`;
  const solved = sums.reachable + sums.unreachable + sums.undecided,
    [low, high] = [0, sums.undecided].map((open) => (100 * (sums.reachable + open)) / solved);
  return ` (${chanceShare({ low, high })}, chance ${chanceShare(summary)})`;
}

function oneError(run, sums) {
  const who =
    run.count === 1 ? `The only ${selected(run)}` : `One of ${count(run.count)} ${selected(run)}`;
  if (sums.undecided) return `${who} is wrong; it is undecided whether the evidence was there`;
  return `${who} is wrong; the evidence was ${sums.reachable ? "" : "not "}there`;
}

function noneGains(run) {
  return `; on the validation ${run.nouns} no repair gains`;
}

function bestWords(run, { title, corrected, broken }) {
  const breaks = broken ? `${count(broken)} other${broken === 1 ? "" : "s"}` : "none",
    did = `fixes ${corrected ? count(corrected) : "none"} and breaks ${breaks}`;
  const gains = corrected > broken;
  const which = run.best
    ? `the repair that is best on validation ${run.nouns}, ${title},`
    : run.repairs.length > 1
      ? `of the repairs ${title} is right most often here: it`
      : title;
  return gains || run.best ? `; ${which} ${did}` : `; no repair gains: ${title} ${did}`;
}

function goButton(text, filters, tip) {
  const made = element("button", { type: "button", class: "go", tip });
  made.go = filters;
  made.textContent = text;
  return made;
}

function drawStory(run, study) {
  const box = byId("story");
  const sentence = element("p", { class: "lead", id: "story-sentence" }),
    where = element("p", { class: "starts" });
  if (!run) {
    const named = count(study.cases.length);
    sentence.textContent =
      `${named} case${study.cases.length === 1 ? "" : "s"} of a study, without single nodes. ` +
      "Choose a case to see its methods; “gnn-repair report --dataset … --backbone …” shows nodes.";
    box.replaceChildren(sentence);
    return;
  }
  sentence.textContent = storySentence(run);
  const why = element("p", { class: "caption" });
  why.append(
    ...glossed(
      "“The evidence was there” means: with other weights on the same last messages (the same " +
        "mass in every group) the true class would win, and the witness shows how. Where it " +
        "was not, it is proved that no weights help. A term is one message; γ is the best lead.",
    ),
  );
  const sums = tally(run),
    first = run.nodes[startNode(run)];
  where.append(
    goButton(
      `Start with ${sums.right < run.count ? "a typical error: " : ""}${run.noun} ` +
        `${nodeName(run, first)} →`,
      { node: String(first) },
    ),
    ...(sums.reachable
      ? [goButton(`${errorsOf(sums.reachable)} with evidence`, { status: "reachable" })]
      : []),
    ...(sums.unreachable
      ? [goButton(`${errorsOf(sums.unreachable)} without`, { status: "unreachable" })]
      : []),
    ...(sums.undecided
      ? [goButton(`${count(sums.undecided)} undecided`, { status: "undecided" })]
      : []),
  );
  const scope = element("p", { class: "scope", id: "scope" });
  scope.textContent = scopeWords(run);
  const chance = element("p", { class: "caption", id: "chance" });
  if (run.chance_summary) chance.textContent = run.chance_summary.words;
  else if (run.classCount === 2 && sums.right < run.count)
    chance.textContent = "Chance is undefined with two classes: there is no third that could win.";
  box.replaceChildren(
    scope,
    sentence,
    ...(chance.textContent ? [chance] : []),
    why,
    where,
    glossary(),
  );
}

function glossary() {
  const list = element("dl", { class: "glossary" });
  for (const [word, meaning] of GLOSSARY) {
    const term = element("dt"),
      text = element("dd");
    term.textContent = word;
    text.textContent = meaning;
    list.append(term, text);
  }
  const title = element("summary");
  title.textContent = "Words of this page";
  return element("details", {}, title, list);
}
