// The hover card: by mouse, by touch and by focus; and the glossary behind the page's own words.

const GLOSSARY = new Map([
  ["γ", "gamma: the largest lead over the worst rival that some reweighting gives a class"],
  ["α", "alpha: the weight that the frozen model gives a message"],
  ["λ", "lambda: another weight for the same message; a group's λ add up to what its α do"],
  ["β", "beta: the part of the logits that no message brings, and no reweighting changes"],
  ["term", "one message of the last aggregation: who sent it, its weight, what it adds to logits"],
  ["group", "terms that share one mass, such as a convolution's or one attention head's"],
  ["witness", "the mixture that proves that a class can win: a few terms with their λ"],
  ["reach", "a class is within reach when some reweighting of the frozen messages makes it win"],
]);
const GLOSSED = /γ|α|λ|β|\b[Tt]erms?\b|\b[Gg]roups?\b|\b[Ww]itness(?:es)?\b|\b[Rr]each(?:able)?\b/g;

function glossKey(word) {
  const plain = word.toLowerCase();
  if (GLOSSARY.has(plain)) return plain;
  return [...GLOSSARY.keys()].find((key) => key.length > 1 && plain.startsWith(key));
}

// Text as nodes in which the first of each word of the glossary explains itself.
function glossed(text) {
  const parts = [],
    seen = new Set();
  let from = 0;
  for (const match of text.matchAll(GLOSSED)) {
    const key = glossKey(match[0]);
    if (seen.has(key)) continue;
    seen.add(key);
    const made = element("span", { class: "gloss", tip: [match[0], GLOSSARY.get(key)] });
    made.textContent = match[0];
    parts.push(text.slice(from, match.index), made);
    from = match.index + match[0].length;
  }
  return [...parts, text.slice(from)];
}

// The element whose card is shown: the nearest with lines of its own, or one whose text is cut.
function tipOwner(target) {
  for (let over = target; over && over !== document.body; over = over.parentElement) {
    if (over.tip) return over;
    if (over.scrollWidth > over.clientWidth + 1 && getComputedStyle(over).textOverflow !== "clip")
      return over;
  }
  return null;
}

function tipLines(owner) {
  if (!owner.tip) return [owner.textContent];
  return typeof owner.tip === "function" ? owner.tip() : owner.tip;
}

function startTips() {
  const card = byId("tip");
  let described = null,
    touched = false;

  function hide() {
    card.hidden = true;
    touched = false;
    if (described) described.removeAttribute("aria-describedby");
    described = null;
  }

  function place(owner, x, y) {
    card.replaceChildren(
      ...tipLines(owner).map((line) => {
        const made = element("div");
        made.textContent = line;
        return made;
      }),
    );
    card.hidden = false;
    const box = card.getBoundingClientRect();
    const left = Math.min(x + 14, window.innerWidth - box.width - 8);
    const above = y + 16 + box.height > window.innerHeight;
    card.style.left = `${Math.max(8, left)}px`;
    card.style.top = `${Math.max(4, above ? y - box.height - 10 : y + 16)}px`;
  }

  function follow(event) {
    const owner = tipOwner(event.target);
    if (owner) place(owner, event.clientX, event.clientY);
    else hide();
  }

  document.addEventListener("pointermove", (event) => {
    if (event.pointerType !== "touch") follow(event);
  });
  // A finger does not hover: touching shows the card, touching elsewhere takes it away.
  // Lifting it is a pointer that leaves, and a focus that moves: the card stays.
  document.addEventListener("pointerdown", (event) => {
    if (event.pointerType !== "touch") return;
    follow(event);
    touched = !card.hidden;
  });
  document.addEventListener("pointerleave", (event) => {
    if (event.pointerType !== "touch") hide();
  });
  document.addEventListener("focusin", (event) => {
    const owner = tipOwner(event.target);
    if (!owner || !event.target.matches(":focus-visible")) {
      if (!touched) hide();
      return;
    }
    const box = event.target.getBoundingClientRect();
    place(owner, box.left, box.bottom - 8);
    described = event.target;
    described.setAttribute("aria-describedby", "tip");
  });
  document.addEventListener("focusout", () => {
    if (!touched) hide();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") hide();
  });
  window.addEventListener("scroll", () => described || hide(), { passive: true });
}

// One sentence for people who do not see the page change; a moment later, so that a walk through
// the list is not read out node by node.
let announcing = 0;
function announce(sentence) {
  clearTimeout(announcing);
  announcing = setTimeout(() => {
    byId("announce").textContent = sentence;
  }, 250);
}
