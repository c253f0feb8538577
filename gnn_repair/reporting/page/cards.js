// A card of the overview: its title, what it is about, its picture, and what all pictures share.

// `scope` says what the numbers are about: which case, which splits, which nodes.
function chartCard(title, caption, draw, { scope = "", wide = false, table = false } = {}) {
  const head = element("h2"),
    note = element("p", { class: "caption" }),
    about = element("p", { class: "scope" }),
    box = element("div", { class: "picture" });
  head.textContent = title;
  about.textContent = scope;
  note.append(...glossed(caption));
  const card = element(
    "section",
    { class: `panel chart${wide ? " wide" : ""}`, "aria-label": title },
    element("header", { class: "panel-head" }, head, exportTools(title, box, { table })),
    about,
    note,
    box,
  );
  byId("charts").append(card);
  responsive(box, (width) => {
    const made = draw(width);
    box.replaceChildren(made);
    roam(made);
  });
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
  for (const { colour, look, text } of entries) {
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
            y: top - 9,
            width: 11,
            height: 11,
            rx: 2,
            style: `fill:var(${colour})`,
          }),
    );
    svg.append(words(left + 16, top, text, { class: "small muted" }));
    left += room;
  }
  return top + 8;
}
