"""The first screen, the glossary, and pictures that lead to their nodes."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from gnn_repair.reporting import gather, report
from tests.helpers.report.browser import missing
from tests.helpers.report.report_worlds import Moved, Tilted, make_exposure

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "a browser is here")

WORDS = ("γ", "α", "λ", "β", "term", "group", "witness", "reach")


def test_the_story_is_told_in_the_page_s_numbers(browser, demo):
    path, evidence = demo
    wrong, reachable = ~evidence.right, evidence.margin > 1e-7
    now = [item.predictions == evidence.true_class for item in evidence.corrections]
    browser.open(path)
    sentence = browser.text("#story-sentence")
    # The best one is chosen on validation nodes, of which this page shows none.
    best = next(j for j, item in enumerate(evidence.corrections) if f", {item.title}," in sentence)
    title = evidence.corrections[best].title
    assert sentence == (
        f"{wrong.sum()} of {len(wrong)} test nodes are wrong; for {(wrong & reachable).sum()} of "
        f"them the evidence was there; the repair that is best on validation nodes, {title}, fixes "
        f"{(wrong & now[best]).sum()} and breaks {(~wrong & ~now[best]).sum()} others."
    )
    share = re.search(r"at these errors in (\d+\.\d %) \[", browser.text("#chance"))[1]
    assert f"chance {share}" in browser.text("#key-figures").replace("\xa0", " ")
    assert "builtin × gcn · split 0 · 748 test nodes" in browser.text("#scope")
    start = browser.driver.find_element("css selector", "#story .starts button")
    node = int(re.search(r"node (\d+)", start.text)[1])
    start.click()
    assert browser.selected() == node
    i = int(np.flatnonzero(evidence.nodes == node)[0])
    assert wrong[i] and reachable[i] and now[best][i]
    assert evidence.support[i] > 1
    browser.driver.back()
    browser.driver.find_elements("css selector", "#story .starts button")[1].click()
    assert browser.shown() == (wrong & reachable).sum()
    assert browser.messages() == []


def test_every_word_is_explained_on_hover_and_in_a_list(browser, demo):
    path, evidence = demo
    seen = {}
    for fragment in ("", f"#node={evidence.nodes[0]}"):
        browser.open(path, fragment)
        seen |= dict(
            browser.run(
                "return [...document.querySelectorAll('.gloss')].filter(e => e.offsetParent).map(e"
                " => { e.dispatchEvent(new PointerEvent('pointermove', {bubbles: true}));"
                " return [e.textContent.toLowerCase(),"
                "  document.getElementById('tip').lastChild.textContent]; })"
            )
        )
        listed = browser.run(
            "return [...document.querySelectorAll('.glossary dt')].map(e => e.textContent)"
        )
        assert fragment or listed == list(WORDS)
    for word in WORDS:
        found = [text for name, text in seen.items() if name.startswith(word)]
        assert found and len(found[0]) > 20, word


def test_a_nonlinear_head_s_story_names_the_undecided(browser, nonlinear):
    browser.open(nonlinear)
    sentence = browser.text("#story-sentence")
    wrong = int(sentence.split()[0])
    # What is undecided may be there, so that nobody is told "none of them".
    open_ = int(re.search(r"for (\d+) of them it is undecided whether the", sentence)[1])
    browser.run(
        "[...document.querySelectorAll('#story button')].find(b =>"
        " b.textContent.includes('undecided')).click()"
    )
    assert browser.shown() == open_ > 0
    for status, expected in (("wrong", wrong), ("reachable", 0)):
        browser.choose("#filter-status", status)
        assert browser.shown() == expected
    total = 0
    for verdict in ("can", "cannot", "open"):
        browser.choose("#filter-status", verdict)
        total += browser.shown()
    assert total == 30


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    exposure, y = make_exposure(nodes=80, seed=6)
    repairs = {"reweighting": Tilted(), "set_translation": Moved()}
    # One error's γ is brought to a billionth: positive, and yet no win.
    evidence = gather(exposure, y)
    i = int(np.flatnonzero(~evidence.right & evidence.reachable)[0])
    node, c = int(evidence.nodes[i]), int(evidence.true_class[i])
    fixed, frozen = exposure.fixed_logits.clone(), exposure.frozen_logits.clone()
    for logits in (fixed, frozen):
        logits[0, node, c] -= evidence.margin[i] - 1e-9
    exposure = replace(exposure, fixed_logits=fixed, frozen_logits=frozen)
    path = tmp_path_factory.mktemp("clicks") / "r.html"
    report(exposure, y, path, repairs=repairs)
    return path, gather(exposure, y, repairs=repairs)


def chosen(evidence, go: dict[str, str]) -> np.ndarray:
    """Which nodes a mark's filters mean, counted without the page."""
    wrong, reachable, y = ~evidence.right, evidence.margin > 1e-7, evidence.true_class
    kept = np.ones(len(evidence.nodes), bool)
    status = {
        "": kept, "right": ~wrong, "wrong": wrong, "reachable": wrong & reachable,
        "unreachable": wrong & ~reachable, "beyond": wrong & ~reachable, "can": reachable,
    }  # fmt: skip
    kept = kept & status[go.get("status", "")]
    if "label" in go:
        kept &= y == int(go["label"])
    if "predicted" in go:
        kept &= evidence.predictions[evidence.nodes] == int(go["predicted"])
    if "from" in go:
        kept &= evidence.degree >= int(go["from"])
    if go.get("to"):
        kept &= evidence.degree <= int(go["to"])
    if "repair" in go:
        j, outcome = go["repair"].split()
        now = evidence.corrections[int(j)].predictions == y
        kept &= {"corrected": wrong & now, "broken": ~wrong & ~now, "wrong": ~now}[outcome]
    for key, values in (("gamma", evidence.margin), ("homophily", evidence.homophily)):
        if key in go:
            low, high = (float(v) if v else s * np.inf for v, s in
                         zip(go[key].split("~"), (-1, 1), strict=True))  # fmt: skip
            if key == "gamma":
                kept &= (values > 1e-7 if low == 0 else values >= low) & (
                    values <= 1e-7 if high == 0 else values < high
                )
            else:
                kept &= (values > low + 1e-6) & (values <= high + 1e-6)
    if "support" in go:
        kept &= reachable & (evidence.support == int(go["support"].split("~")[0]))
    return kept


def test_every_mark_leads_to_the_nodes_it_counts(browser, world):
    path, evidence = world
    assert ((evidence.margin > 0) & (evidence.margin < 1e-7)).sum() == 1
    browser.open(path)
    browser.unfold()
    marks = browser.run(
        "return [...document.querySelectorAll('#overview .go')].map(m => [m.go,"
        " (m.closest('.chart') || m.closest('section')).getAttribute('aria-label'),"
        " (Array.isArray(m.tip) ? m.tip : []).join('; ')])"
    )
    assert len(marks) > 40
    kinds = {name for _, name, _ in marks}
    assert kinds >= {
        "In short", "Key figures", "Accuracy", "What each repair did", "Reach by degree",
        "Best margin γ of the true class", "Reach by local homophily", "Size of the witness",
        "Reach by class", "Which classes are taken for which",
    }  # fmt: skip
    for go, name, tip in marks:
        counted = re.search(r": (\d+)(?: corrected| broken| right|;)", tip)
        if counted and name != "Key figures":
            assert int(counted[1]) == chosen(evidence, go).sum(), (name, tip)
    # A few marks of every card are clicked.
    seen: dict[str, int] = {}
    places = []
    for k, (go, name, _) in enumerate(marks):
        seen[name] = seen.get(name, 0) + 1
        if "node" not in go and seen[name] <= 4:
            places.append(k)
    counts = browser.run(
        "const marks = [...document.querySelectorAll('#overview .go')];"
        "return arguments[0].map(k => {"
        "  marks[k].dispatchEvent(new MouseEvent('click', {bubbles: true}));"
        "  const text = document.getElementById('count').textContent;"
        "  document.getElementById('tab-overview').click(); return parseInt(text); })",
        places,
    )
    for k, listed in zip(places, counts, strict=True):
        go, name, _ = marks[k]
        assert listed == chosen(evidence, go).sum(), (name, go)
    # So many steps in a second are the test's; the page goes on where the browser refuses one.
    assert [line for line in browser.messages() if "Throttling" not in line] == []


def test_what_was_picked_can_be_taken_away(browser, world):
    path, evidence = world
    browser.open(path, "#nodes&gamma=0~1&status=reachable")
    inside = (evidence.margin > 1e-7) & (evidence.margin < 1) & ~evidence.right
    assert browser.shown() == inside.sum() > 0
    assert browser.text("[data-pick=gamma]") == "γ 0 to 1 ✕"
    browser.driver.find_element("css selector", "[data-pick=gamma]").click()
    assert browser.shown() == (~evidence.right & evidence.reachable).sum()
    browser.driver.find_element("id", "clear").click()
    assert browser.shown() == len(evidence.nodes)
    assert not browser.driver.find_element("id", "clear").is_displayed()
    browser.open(path, "#nodes&gamma=nonsense&status=nonsense&label=77")
    assert browser.shown() == len(evidence.nodes)
    assert browser.messages() == []
