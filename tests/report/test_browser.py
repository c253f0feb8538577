"""The page in a real browser: going from node to node, filters, and what each number is about."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from gnn_repair.errors import InputError
from gnn_repair.reporting import PageContext, gather, report, report_results
from gnn_repair.reporting.figures import hull, plane_of
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


def test_filters_count_what_python_counts(browser, demo):
    path, evidence = demo
    browser.open(path, "#nodes")
    wrong, reachable = ~evidence.right, evidence.margin > 1e-7
    assert browser.shown() == len(evidence.nodes)
    browser.choose("#filter-status", "unreachable")
    assert browser.shown() == int((wrong & ~reachable).sum())
    browser.choose("#filter-status", "reachable")
    fixed = evidence.corrections[1].predictions == evidence.true_class
    browser.choose("#filter-repair", "1 corrected")
    assert browser.shown() == int((wrong & reachable & fixed).sum()) > 0
    browser.choose("#degree-from", "3")
    chosen = wrong & reachable & fixed & (evidence.degree >= 3)
    assert browser.shown() == int(chosen.sum())
    true = int(evidence.true_class[chosen][0])
    browser.choose("#filter-label", str(true))
    assert browser.shown() == int((chosen & (evidence.true_class == true)).sum())
    browser.press("ARROW_DOWN")
    assert browser.selected() in evidence.nodes[chosen & (evidence.true_class == true)]
    for field in ("#filter-status", "#filter-repair", "#degree-from", "#filter-label"):
        browser.choose(field, "")
    node = str(evidence.nodes[7])
    browser.choose("#search", node)
    assert browser.shown() == sum(str(v).startswith(node) for v in evidence.nodes)
    browser.choose("#search", "nothing like this")
    assert browser.shown() == 0
    assert browser.messages() == []


def test_a_deep_link_shows_its_node_and_certificate(browser, demo):
    path, evidence = demo
    unreachable = int(np.flatnonzero(evidence.margin < -0.05)[0])
    for i in (0, 5, unreachable):
        node = evidence.nodes[i]
        browser.open(path, f"#node={node}")
        assert browser.text("#node-head h2") == f"Node {node}"
        verdict = browser.text("#certificate .verdict").replace("−", "-")
        name = f"class {evidence.true_class[i]}"
        if evidence.margin[i] > 0:
            assert f"{name} can win by {evidence.margin[i]:.2f}" in verdict
            terms = np.arange(evidence.starts[i], evidence.starts[i + 1])
            used = evidence.sources[evidence.rows[terms[evidence.witness[terms] > 1e-7]]]
            for source in used:
                assert ("itself" if source == node else f"node {source} ") in verdict
        else:
            assert f"{name} cannot win" in verdict
            assert f"no mixture scores above {evidence.margin[i]:.2f}" in verdict
    browser.open(path, "#node=99999999")
    assert not browser.run("return document.getElementById('overview').hidden")


def test_every_methods_margin_is_pythons(browser, small):
    path, evidence = small
    for i in (0, 3, 17):
        browser.open(path, f"#node={evidence.nodes[i]}")
        found = browser.run(
            "return Object.fromEntries([...document.querySelectorAll('[data-margin]')]"
            ".map(cell => [cell.dataset.margin, cell.textContent]))"
        )
        c = int(evidence.true_class[i])
        expected = {
            "frozen": margin(evidence.frozen_logits[i], c),
            "oracle": evidence.margin[i],
            "what_if": margin(evidence.frozen_logits[i], c),
            **{item.name: margin(item.logits[i], c) for item in evidence.corrections},
        }
        smallest = found.pop("nearest", None)
        assert (smallest == "just wins") == (not evidence.right[i] and evidence.margin[i] > 1e-7)
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert float(found[name].replace("−", "-")) == pytest.approx(value, abs=6e-4), name


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


def test_the_drawn_outline_is_pythons(browser, small):
    path, evidence = small
    browser.open(path, f"#node={evidence.nodes[4]}")
    # The frozen and the oracle's markers fix the affine map from margins to pixels.
    drawn = browser.run(
        "const box = key => document.querySelector(`[data-point=${key}]`).getBBox();"
        "const at = key => { const b = box(key); return [b.x + b.width / 2, b.y + b.height / 2]; };"
        "const outline = document.querySelector('.hull').getAttribute('points');"
        "return [at('frozen'), at('reweighting'), outline]"
    )
    plane = plane_of(evidence, 4)
    known = plane.place(np.stack([evidence.frozen_logits[4], evidence.corrections[0].logits[4]]))
    pixels = np.array(drawn[:2])
    scale = (pixels[1] - pixels[0]) / (known[1] - known[0])
    expected = pixels[0] + (hull(evidence, 4, plane) - known[0]) * scale
    found = np.array([[float(v) for v in p.split(",")] for p in drawn[2].split()])
    assert len(found) == len(expected)
    np.testing.assert_allclose(sorted(map(tuple, found)), sorted(map(tuple, expected)), atol=3.0)


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


def test_two_classes_and_left_out_terms(browser, tmp_path, monkeypatch):
    exposure, y = make_exposure(classes=2)
    names = [f"page {v}" for v in range(40)]
    # Node 2 has a term from everybody, of six bytes each.
    monkeypatch.setattr("gnn_repair.reporting.payload.LARGEST", 10 * 2**20 // 239)
    path = report(exposure, y, tmp_path / "r.html", node_names=names, repairs={"m": Moved()})
    browser.open(path, "#nodes")
    assert browser.text("#node-head h2").startswith("Node page ")
    assert browser.run("return document.querySelectorAll('#plane .hull').length") == 1
    browser.open(path, "#node=2")
    assert "left out" in browser.text("#certificate")
    assert browser.messages() == []


def test_a_large_page_opens_a_sample_of_its_nodes(browser, tmp_path, monkeypatch):
    exposure, y = make_exposure()
    monkeypatch.setattr("gnn_repair.reporting.payload.EXPLORED_BYTES", 3000)
    path = report(exposure, y, tmp_path / "r.html", repairs={"m": Moved()})
    browser.open(path, "#overview")
    assert "a sample of" in browser.text("#subtitle")
    assert "40 nodes" in browser.text("#key-figures")
    browser.open(path, "#nodes")
    words = re.fullmatch(r"(\d+) of (\d+) nodes, a sample of 40", browser.text("#count"))
    assert words and words[1] == words[2] and 3 < int(words[1]) < 30
    browser.press(*["ARROW_DOWN"] * 39)
    assert "exceeds" in browser.text("#certificate") or "wins" in browser.text("#certificate")
    assert browser.messages() == []


def test_a_study_without_nodes(browser, tmp_path):
    import pandas as pd

    rows = [
        [dataset, "gcn", split, method, "test", metric, value]
        for dataset in ("cora", "squirrel")
        for split in range(3)
        for method, metric, value in (
            ("frozen", "accuracy", 0.8 + split / 100),
            ("reweighting", "accuracy", 0.82),
            ("oracle", "true_class_reach", 0.9),
        )
    ]
    columns = ["dataset", "backbone", "split", "method", "part", "metric", "value"]
    path = report_results(pd.DataFrame(rows, columns=columns), tmp_path / "r.html")
    browser.open(path)
    assert browser.run("return document.getElementById('tab-nodes').hidden")
    table = browser.text(".chart table")
    assert "81.00" in table and "88.1" in table and "−7.10" in table
    browser.choose("#case", "1")
    assert "52.7" in browser.text(".chart table")
    assert browser.messages() == []


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


def test_orders_are_pythons(browser, demo):
    path, evidence = demo
    c, n = evidence.true_class, np.arange(len(evidence.nodes))

    def lead(logits):
        others = logits.copy()
        others[n, c] = -np.inf
        return logits[n, c] - others.max(1)

    frozen, moved = lead(evidence.frozen_logits), lead(evidence.corrections[1].logits)
    browser.open(path, "#nodes")
    for order, key in (
        ("margin", evidence.margin),
        ("margin-high", -evidence.margin),
        ("frozen", frozen),
        ("gain", frozen - evidence.margin),
        ("gain 1", frozen - moved),
        ("degree-low", evidence.degree),
    ):
        browser.choose("#order", order)
        browser.run("document.getElementById('list').scrollTop = 0")
        browser.settle()
        listed = browser.run(
            "return [...document.querySelectorAll('.row')].map(row => Number(row.dataset.node))"
        )
        place = {node: i for i, node in enumerate(evidence.nodes.tolist())}
        values = np.array([key[place[node]] for node in listed])
        np.testing.assert_allclose(values, np.sort(key)[: len(values)], atol=1e-5)


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

COLUMNS = ["dataset", "backbone", "split", "method", "part", "metric", "value"]
REPAIRS = {"reweighting": Tilted(), "set_translation": Moved()}


def stored(values: dict[str, list[float]], dataset: str = "mine") -> pd.DataFrame:
    """Results of three splits, 0, 2 and 5."""
    rows = [
        [dataset, "gcn", split, method, "test", "accuracy", value]
        for method, accuracies in values.items()
        for split, value in zip((0, 2, 5), accuracies, strict=True)
    ]
    return pd.DataFrame(rows, columns=COLUMNS)


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


def cards(browser) -> dict[str, str]:
    return browser.run(
        "return Object.fromEntries([...document.querySelectorAll('.chart')].map(card =>"
        " [card.querySelector('h2').textContent, card.querySelector('.caption').textContent]))"
    )


def test_the_stored_mean_and_the_page_s_own_model_are_told_apart(browser, world, tmp_path):
    *_, right, tilted = world
    results = stored({"frozen": [0.3, right, 0.9], "reweighting": [0.4, tilted, 0.5]})
    path = page(world, tmp_path / "r.html", split=2, selection="test nodes", results=results)
    browser.open(path)
    browser.unfold()
    assert browser.text("#key-figures b") == f"{100 * right:.1f} %"
    # What the page is about stands once; a card that is about something else says so.
    assert "mine × gcn · split 2 · 40 test nodes" in browser.text("#scope")
    about = cards(browser)
    assert "(mine × gcn · mean over splits 0, 2 and 5 · test nodes)" in about["Accuracy"]
    assert not [name for name, words in about.items() if "split 2" in words]
    assert len(about) >= 7
    own = browser.run("return [...document.querySelectorAll('[data-own]')].map(m => m.dataset.own)")
    np.testing.assert_allclose([float(v) for v in own], [100 * right, 100 * tilted])
    mean = 100 * np.mean([0.3, right, 0.9])
    assert f"{mean:.1f}" in browser.text(".chart[aria-label=Accuracy] svg")
    assert browser.run("return document.getElementById('case-choice').hidden")
    assert browser.messages() == []


def test_a_stored_number_that_this_model_does_not_repeat_is_seen(browser, world, tmp_path):
    *_, right, tilted = world
    frame = stored({"frozen": [right, 0.1, 0.2], "reweighting": [tilted + 0.1, 0.1, 0.2]})
    results = frame[frame["split"] == 0]
    path = page(world, tmp_path / "r.html", split=0, selection="test nodes", results=results)
    browser.open(path)
    browser.unfold()
    own = browser.run("return [...document.querySelectorAll('[data-own]')].map(m => m.dataset.own)")
    assert [float(v) for v in own] == [pytest.approx(100 * tilted)]


def test_nodes_are_called_test_nodes_only_where_they_are(browser, world, tmp_path):
    import torch

    for options, word in (
        ({}, "nodes"),
        ({"nodes": torch.arange(30)}, "chosen nodes"),
        ({"nodes": torch.arange(30), "selection": "validation nodes"}, "validation nodes"),
    ):
        browser.open(page(world, tmp_path / "r.html", **options))
        text = browser.text("#overview")
        assert "test nodes" not in text and "test accuracy" not in text
        browser.unfold()
        assert f"accuracy on {word} (%)" in browser.text("#overview")
        number = 40 if not options else 30
        assert f"{number} {word}" in browser.text("#key-figures")


def test_a_study_s_case_changes_every_card_of_a_case(browser, tmp_path):
    frames = [
        stored({"frozen": [0.5, 0.6, 0.7], "reweighting": [0.6, 0.7, 0.8]}, "one"),
        stored({"frozen": [0.2, 0.2, 0.2], "reweighting": [0.3, 0.3, 0.3]}, "two"),
    ]
    path = report_results(pd.concat(frames), tmp_path / "r.html")
    browser.open(path)
    assert "60.0" in browser.text("#key-figures") and "one × gcn" in browser.text("#key-figures")
    assert not browser.run("return document.getElementById('case-choice').hidden")
    browser.choose("#case", "1")
    figures = browser.text("#key-figures")
    assert "20.0" in figures and "two × gcn" in figures and "one × gcn" not in figures
    about = cards(browser)
    assert "(two × gcn · mean over splits 0, 2 and 5 · test nodes)" in about["Accuracy"]
    assert "(all 2 cases" in about["Gain over Frozen, all cases"]
    assert browser.run("return location.hash") == "#overview&case=1"
    browser.driver.back()
    assert "one × gcn" in browser.text("#key-figures")
    assert browser.messages() == []


def test_a_slider_gives_back_the_mass_that_it_took(browser, small):
    """All of a group's mass and back again: the others, who had none left, share it evenly."""
    path, evidence = small
    i = next(k for k in range(3, 30) if np.diff(evidence.starts)[k] >= 3)
    groups, first = len(evidence.groups), evidence.starts[i]
    ends = evidence.segments[i * groups : (i + 1) * groups + 1] - first
    group = int(np.flatnonzero(np.diff(ends) > 2)[0])
    low, high = ends[group], ends[group + 1]
    lam = evidence.coefficients[first : evidence.starts[i + 1]].copy()
    mass = lam[low:high].sum()
    browser.open(path, f"#node={evidence.nodes[i]}")
    for share in (1.0, 0.25, 0.0, 1.0, 0.5):
        # One event, as on the way of a slider: a second one would scale the sum right again.
        browser.run(
            "const field = document.querySelector(arguments[0]); field.value = arguments[1];"
            "field.dispatchEvent(new Event('input', {bubbles: true}));",
            f"input[data-term='{low}']",
            str(share),
        )
        lam[low:high] = (1 - share) * mass / (high - low - 1)
        lam[low] = share * mass
        expected = margin(mixture(evidence, i, lam), int(evidence.true_class[i]))
        found = float(browser.run("return document.getElementById('what-if-margin').dataset.value"))
        assert found == pytest.approx(expected, abs=1e-4)
