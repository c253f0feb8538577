"""The page in a real browser: going from node to node, filters, and what each number is about."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from gnn_repair.errors import InputError
from gnn_repair.reporting import PageContext, gather, report
from tests.helpers.report.browser import DESKTOP, PHONE, missing
from tests.helpers.report.report_worlds import NASTY, Moved, Tilted, make_exposure

# The page in a real browser: headless Chromium.

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "a browser is here")


def margin(logits: np.ndarray, c: int) -> float:
    return float(logits[c] - np.delete(logits, c).max())


def mixture(evidence, i: int, coefficients: np.ndarray) -> np.ndarray:
    terms = slice(evidence.starts[i], evidence.starts[i + 1])
    return evidence.fixed_logits[i] + coefficients @ evidence.contributions[evidence.rows[terms]]


def test_nothing_goes_wrong_and_nothing_is_fetched(browser, demo):
    path, _ = demo
    browser.open(path)
    assert browser.text("#title").startswith("GCN on builtin")
    assert browser.run("return document.querySelectorAll('#charts .chart').length") <= 5
    browser.unfold()
    assert browser.run("return document.querySelectorAll('.chart svg').length") >= 6
    browser.run("document.getElementById('tab-nodes').click()")
    assert browser.run("return document.querySelectorAll('#plane svg polygon.hull').length") == 1
    assert browser.messages() == []
    outside = [
        url for url in browser.requests() if not url.startswith(("file:", "data:", "about:"))
    ]
    assert outside == []
    assert path.stat().st_size < 8e6


def test_arrow_keys_walk_and_the_address_follows(browser, demo):
    path, evidence = demo
    browser.open(path, f"#node={evidence.nodes[0]}")
    assert browser.selected() == evidence.nodes[0]
    browser.press("ARROW_DOWN", "ARROW_DOWN", "ARROW_DOWN", "ARROW_UP")
    assert browser.selected() == evidence.nodes[2]
    assert browser.run("return location.hash") == f"#node={evidence.nodes[2]}"
    browser.press(*["ARROW_DOWN"] * 40)
    assert browser.selected() == evidence.nodes[42]
    # Only the rows in sight exist, however long the list.
    assert browser.run("return document.querySelectorAll('.row').length") < 60


@pytest.mark.parametrize("fixture", ["demo", "small"])
def test_a_slider_moves_mass_within_its_group(browser, fixture, request):
    path, evidence = request.getfixturevalue(fixture)
    i = next(k for k in range(3, 30) if np.diff(evidence.starts)[k] >= 3)
    groups, first = len(evidence.groups), evidence.starts[i]
    ends = evidence.segments[i * groups : (i + 1) * groups + 1] - first
    term = int(ends[np.flatnonzero(np.diff(ends) > 1)[0]]) + 1
    group = int(np.searchsorted(ends, term, side="right")) - 1
    low, high = ends[group], ends[group + 1]
    lam = evidence.coefficients[first : evidence.starts[i + 1]].copy()
    mass = lam[low:high].sum()
    browser.open(path, f"#node={evidence.nodes[i]}")
    for share in (0.8, 0.25):
        browser.choose(f"input[data-term='{term}']", str(share))
        others = [k for k in range(low, high) if k != term]
        lam[others] *= (1 - share) * mass / lam[others].sum()
        lam[term] = share * mass
        expected = margin(mixture(evidence, i, lam), int(evidence.true_class[i]))
        found = float(browser.run("return document.getElementById('what-if-margin').dataset.value"))
        assert found == pytest.approx(expected, abs=1e-4)
        assert f"{abs(expected):.3f}" in browser.text("#what-if-row")
    assert browser.run("return document.querySelectorAll('#what-if-point path').length") == 1
    browser.run("document.querySelector('[data-set=oracle]').click()")
    found = float(browser.run("return document.getElementById('what-if-margin').dataset.value"))
    assert found == pytest.approx(evidence.margin[i], abs=1e-4)
    assert browser.messages() == []


def test_every_view_draws_every_node_without_a_complaint(browser, small):
    path, evidence = small
    browser.open(path, f"#node={evidence.nodes[0]}")
    walk = (
        "const faults = []; for (let step = 0; step < arguments[0]; step++) {"
        "  const text = document.getElementById('nodes').innerHTML;"
        "  if (/NaN|undefined|Infinity/.test(text) || !document.querySelector('#plane .region'))"
        "    faults.push(location.hash);"
        "  document.dispatchEvent(new KeyboardEvent('keydown', {key: arguments[1]}));"
        "} return faults"
    )
    # Every node in one view, from the end a third of them in the others.
    n = len(evidence.nodes)
    for view, key, steps in (
        ("margins", "ArrowDown", n), ("three", "ArrowUp", n // 3), ("spread", "ArrowDown", n // 3),
    ):  # fmt: skip
        browser.choose("#view", view)
        assert browser.run(walk, steps, key) == []
    assert browser.selected() == evidence.nodes[-1]
    browser.choose("#colouring", "prediction")
    browser.choose("#weighting", "unit")
    browser.run(
        "for (const id of ['closer', 'closer', 'farther', 'fit'])"
        "  document.getElementById(id).click()"
    )
    assert browser.messages() == []


def test_names_are_text_and_never_markup(browser, small):
    path, _ = small
    for fragment in ("", "#nodes"):
        browser.open(path, fragment)
        assert browser.run("return window.harm ?? null") is None
        assert browser.run("return document.querySelector('#harm, h1 img, article i')") is None
        assert browser.text("h1") == "<img src=x onerror=harm()>"
        assert browser.messages() == []
    options = browser.run(
        "return [...document.querySelectorAll('#filter-label option')].map(o => o.textContent)"
    )
    assert options == ["any", *NASTY]
    assert "<i>mine</i>" in browser.text("#readout")


INHERITED = ["constructor", "toString", "__proto__", "hasOwnProperty", "alpha", "label", "over 1"]
"""Names that every object of the page's language has, or that the page itself uses."""


def test_names_are_never_keys(browser, tmp_path):
    """A page with such names shows what the same page shows with plain ones."""
    exposure, y = make_exposure(groups=2, classes=4)
    groups = [replace(g, name=name) for g, name in zip(exposure.groups, INHERITED, strict=False)]
    exposure = replace(exposure, groups=tuple(groups))
    generator = torch.Generator().manual_seed(4)
    logits = {name: torch.rand(40, 4, generator=generator) for name in INHERITED[1:]}
    seen = {}
    for kind in ("plain", "nasty"):
        names = INHERITED if kind == "nasty" else [f"method {j}" for j in range(7)]
        values = [Tilted(), *logits.values()]
        path = report(
            exposure, y, tmp_path / f"{kind}.html",
            repairs=dict(zip(names, values, strict=True)),
            class_names=names[:4], node_names=[names[v % 7] for v in range(40)],
        )  # fmt: skip
        browser.open(path)
        browser.unfold()
        charts = browser.run(
            "return [...document.querySelectorAll('.chart')].map(c => [c.querySelector('h2')"
            ".textContent, c.querySelectorAll('svg *').length > 5])"
        )
        browser.open(path, "#node=3")
        browser.run("document.querySelectorAll('#readout input')[2].click()")
        browser.run("document.querySelectorAll('#what-if-buttons button')[2].click()")
        for j in range(4, 7):
            browser.run(f"document.querySelectorAll('#terms th button')[{j}].click()")
        rows = browser.run(
            "return [...document.querySelectorAll('#readout tr')].map(r => r.lastChild.textContent)"
        )
        order = browser.run(
            "return [...document.querySelectorAll('#terms tr[data-term]')].map(r => r.dataset.term)"
        )
        totals = browser.run(
            "return [...document.querySelectorAll('#terms .total td')].map(c => c.textContent)"
        )
        assert browser.messages() == []
        seen[kind] = (charts, rows, order, totals)
        titles = browser.run(
            "return [...document.querySelectorAll('#readout label')].map(c => c.textContent)"
        )
        assert titles[-8:-1] == names
    assert len(seen["plain"][0]) >= 5 and all(drawn for _, drawn in seen["plain"][0])
    assert seen["nasty"] == seen["plain"]


@pytest.mark.parametrize("name", ["frozen", "oracle", "what-if", "unit"])
def test_a_repair_cannot_take_the_name_of_something_else(name, tmp_path):
    exposure, y = make_exposure()
    with pytest.raises(InputError, match=f"cannot be called {name!r}"):
        report(exposure, y, tmp_path / "r.html", repairs={name: Moved()})


@pytest.mark.parametrize("width", [PHONE, DESKTOP])
def test_nothing_sticks_out_sideways(browser, demo, width):
    path, evidence = demo
    for fragment in ("", f"#node={evidence.nodes[0]}"):
        browser.open(path, fragment, width)
        assert browser.run("return document.documentElement.scrollWidth") <= width


def test_light_and_dark(browser, demo):
    path, _ = demo
    browser.open(path)
    ink = "return getComputedStyle(document.body).color"
    press = "document.getElementById('theme').click()"
    colours = []
    for _ in range(2):
        browser.run(press)
        colours.append(browser.run(ink))
    light, dark = ([int(v) for v in re.findall(r"\d+", c)] for c in colours)
    assert max(light[:3]) < 60 and min(dark[:3]) > 200


# Going from node to node: search, filters, Back, links.


def node_shown(browser) -> int:
    return int(browser.text("#node-head h2").split()[-1])


def test_search_and_enter_go_to_the_node(browser, demo):
    path, evidence = demo
    browser.open(path, f"#node={evidence.nodes[0]}")
    # A number that begins other numbers of the list too: the very one is meant.
    texts = [str(v) for v in evidence.nodes]
    wanted = next(t for t in texts[5:] if sum(u.startswith(t) for u in texts) > 1)
    field = browser.driver.find_element("id", "search")
    field.send_keys(wanted)
    browser.press("ENTER")
    assert browser.selected() == node_shown(browser) == int(wanted)
    assert f"node={wanted}&q={wanted}" in browser.run("return location.hash")


def test_the_shown_node_passes_the_filters(browser, demo):
    path, evidence = demo
    browser.open(path, f"#node={evidence.nodes[0]}")
    wrong, reachable = ~evidence.right, evidence.margin > 1e-7
    browser.choose("#filter-status", "unreachable")
    first = evidence.nodes[wrong & ~reachable][0]
    assert browser.selected() == node_shown(browser) == first
    browser.choose("#search", "nothing like this")
    assert not browser.driver.find_element("id", "node").is_displayed()
    assert browser.driver.find_element("id", "nothing").is_displayed()
    browser.choose("#search", "")
    assert browser.selected() == node_shown(browser) == first
    # A link to a node that the filters leave out takes them away, and says so.
    right = evidence.nodes[evidence.right][0]
    browser.run(f"location.hash = '#node={right}&status=reachable'")
    browser.until("!document.getElementById('notice').hidden")
    assert browser.selected() == node_shown(browser) == right
    assert browser.shown() == len(evidence.nodes)
    assert "Filters were taken away" in browser.text("#notice")
    assert browser.messages() == []


def test_back_goes_back_node_by_node(browser, demo):
    path, evidence = demo
    browser.open(path, f"#node={evidence.nodes[3]}")
    browser.press("ARROW_DOWN", "ARROW_DOWN")
    browser.choose("#filter-status", "wrong")  # the same step, seen otherwise
    browser.press("ARROW_DOWN")
    seen = [node_shown(browser)]
    for _ in range(3):
        browser.driver.back()
        seen.append(node_shown(browser))
    assert seen == [evidence.nodes[i] for i in (6, 5, 4, 3)]
    assert browser.run("return document.getElementById('filter-status').value") == ""
    browser.driver.forward()
    assert node_shown(browser) == evidence.nodes[4]
    browser.run("document.getElementById('tab-overview').click()")
    browser.driver.back()
    assert browser.run("return document.getElementById('overview').hidden")
    assert node_shown(browser) == evidence.nodes[4]


def test_a_link_to_a_node_that_is_not_there_says_so(browser, demo):
    path, evidence = demo
    absent = next(v for v in range(3000) if v not in set(evidence.nodes))
    for node, words in (
        (absent, f"Node {absent} is not on this page, which shows 748 test nodes."),
        (99999999, "There is no node 99999999; this page shows 748 test nodes."),
        ("x<b>", "There is no node x<b>; this page shows 748 test nodes."),
    ):
        browser.open(path, f"#node={node}")
        assert browser.text("#notice-text") == words
        assert browser.driver.find_element("id", "notice").is_displayed()
        assert not browser.run("return document.getElementById('overview').hidden")
    browser.run("document.getElementById('notice-close').click()")
    assert not browser.driver.find_element("id", "notice").is_displayed()


def test_a_node_is_shown_from_its_head_on(browser, demo):
    path, _ = demo
    browser.open(path)
    browser.unfold()
    browser.run("window.scrollTo(0, document.body.scrollHeight)")
    before = browser.run("return window.scrollY")
    browser.run(
        "[...document.querySelectorAll('.chart .go')].at(-1)"
        ".dispatchEvent(new MouseEvent('click', {bubbles: true}))"
    )
    head = browser.run("return document.getElementById('node-head').getBoundingClientRect().top")
    assert 0 <= head < 300 and before > 500
    # Back leads to the picture that was clicked.
    browser.driver.back()
    browser.until("Math.abs(window.scrollY - arguments[0]) < 5", before)
    # The names of the views are no places to scroll to.
    for fragment in ("#nodes", "#overview"):
        browser.open(path, fragment)
        browser.settle()
        assert browser.run("return window.scrollY") == 0


# One model a page, and every number says what it is about.

REPAIRS = {"reweighting": Tilted(), "set_translation": Moved()}


@pytest.fixture(scope="module")
def world():
    exposure, y = make_exposure()
    evidence = gather(exposure, y, repairs=REPAIRS)
    right = float(evidence.right.mean())
    tilted = float((evidence.corrections[0].predictions == evidence.true_class).mean())
    return exposure, y, right, tilted


def page(world, path, split=None, results=None, **options):
    exposure, y, *_ = world
    context = PageContext(dataset="mine", backbone="gcn", split=split, results=results)
    return report(exposure, y, path, repairs=REPAIRS, context=context, **options)
