"""The page in a real browser: going from node to node by mouse, key, touch and address."""

from __future__ import annotations

import io
from dataclasses import replace
from itertools import product

import numpy as np
import pandas as pd
import pytest
import torch

from gnn_repair.reporting import gather, report
from tests.helpers.report.browser import PHONE
from tests.helpers.report.report_worlds import Moved, make_exposure

FIELDS = {"#search": "1", "#degree-from": "4", "#degree-to": "5", "#terms input": "0.8"}
SELECTS = (
    *("filter-status", "filter-label", "filter-prediction", "filter-repair", "filter-pair"),
    *("order", "view", "rival-one", "rival-two", "weighting", "colouring", "compare-a"),
    "compare-b",
)
BUTTONS = (
    *("#closer", "#farther", "#fit", "#fit-repairs", "#terms th[data-column] button"),
    *("[data-set=oracle]", "[data-draw=far]"),
)
SEEN = (
    "return [location.hash, document.getElementById('nodes').innerText,"
    " [...document.querySelectorAll('[data-draw]')].map(box => box.checked),"
    " [...document.querySelectorAll('#nodes select')].map(select => select.value),"
    " [...document.querySelectorAll('#plane .hull')].map(hull => hull.getAttribute('points'))]"
)


@pytest.mark.parametrize("control", [*FIELDS, *SELECTS, *BUTTONS])
def test_what_a_control_sets_can_be_linked_to(browser, demo, control):
    """Every control changes the page and the address, which shows the same page anew."""
    path, evidence = demo

    def seen(address: str):
        if address:
            browser.open(path, address)
        browser.run("document.getElementById('compare-panel').scrollIntoView()")
        browser.until("document.querySelector('#compare-tables table')")
        browser.settle()
        return browser.run(SEEN)

    # The error with the most terms: what a slider leaves to the others depends on its way.
    node = evidence.nodes[np.argmax(np.where(evidence.right, 0, np.diff(evidence.starts)))]
    before = seen(f"#node={node}&hide=none")
    if control in FIELDS:
        browser.choose(control, FIELDS[control])
    elif control in SELECTS:
        other = f"[...document.getElementById('{control}').options].findLast(o => !o.selected)"
        browser.choose(f"#{control}", browser.run(f"return {other}.value"))
    else:
        browser.click(control)
    after = seen("")
    assert after[0] != before[0] and after[1:] != before[1:]
    assert seen(after[0]) == after


def test_a_link_is_copied(browser, small):
    browser.open(small[0], "#nodes")
    browser.run(
        "Object.defineProperty(navigator, 'clipboard', {value: {writeText: async text => {"
        " window.copied = text; }}}); document.getElementById('copy-link').click()"
    )
    browser.until("window.copied === location.href")
    browser.until("document.getElementById('copy-link').textContent === 'Copied'")


def test_nonsense_in_a_link_harms_nothing(browser, demo):
    path, evidence = demo
    node = evidence.nodes[3]
    for part in (
        "what=nobody,1:7,99999:0.5,x:y&one=77&two=-1&frame=1,2&hide=9,x&view=__proto__&sort=up "
        "constructor&fit=&weigh=nobody&colour=3&order=gain 99&a=7&b=zz&from=x&to=1e999",
        "%E0%A4%A", "frame=0,0,0,0&what=99999:0.5", "frame=1,-1,1,-1&b=zz",
        "frame=-1e308,1e308,-5,5&one=77",
    ):  # fmt: skip
        browser.open(path, f"#node={node}&{part}")
        assert browser.selected() == node, part
        assert len(browser.texts("#plane svg .hull")) == 1


def test_arrows_walk_and_back_goes_back_node_by_node(browser, demo):
    path, evidence = demo
    browser.open(path, f"#node={evidence.nodes[3]}")
    browser.press("ARROW_DOWN", "ARROW_DOWN", "ARROW_DOWN", "ARROW_UP")
    assert browser.run("return location.hash") == f"#node={evidence.nodes[5]}"
    browser.choose("#filter-status", "wrong")  # the same step, seen otherwise
    browser.press("ARROW_DOWN")
    seen = [browser.selected()]
    for _ in range(5):
        browser.driver.back()
        seen.append(browser.selected())
    assert seen == [evidence.nodes[i] for i in (6, 5, 6, 5, 4, 3)]
    assert browser.run("return document.getElementById('filter-status').value") == ""
    browser.driver.forward()
    assert browser.selected() == evidence.nodes[4]
    browser.click("#tab-overview")
    browser.driver.back()
    assert browser.run("return document.getElementById('overview').hidden")
    assert browser.selected() == evidence.nodes[4]


def test_the_list_is_a_listbox(browser, demo):
    path, evidence = demo
    browser.open(path, f"#node={evidence.nodes[0]}")
    browser.run("document.getElementById('list').focus()")
    size, seen = len(evidence.nodes), []
    for keys in ([], ["ARROW_DOWN"], ["END"], ["ARROW_DOWN"], ["PAGE_UP", "HOME"]):
        browser.press(*keys)
        browser.settle()
        seen.append(
            browser.run(
                "const box = document.getElementById('list'), option ="
                " document.getElementById(box.getAttribute('aria-activedescendant'));"
                "return [Number(option.dataset.node), ...['posinset', 'setsize'].map(name =>"
                " Number(option.getAttribute(`aria-${name}`)))]"
            )
        )
        # Only the rows in sight exist, however long the list.
        assert len(browser.texts(".row")) < 60
    assert seen == [[evidence.nodes[i], i + 1, size] for i in (0, 1, size - 1, size - 1, 0)]
    assert browser.run("return document.activeElement.id") == "list"


def test_the_shown_node_passes_the_filters(browser, demo):
    path, evidence = demo
    browser.open(path, f"#node={evidence.nodes[0]}")
    # A number that begins other numbers of the list too: the very one is meant.
    texts = [str(v) for v in evidence.nodes]
    wanted = next(t for t in texts[5:] if sum(u.startswith(t) for u in texts) > 1)
    browser.driver.find_element("id", "search").send_keys(wanted)
    browser.press("ENTER")
    assert browser.selected() == int(wanted)
    browser.choose("#search", "")
    browser.choose("#filter-status", "unreachable")
    first = evidence.nodes[~evidence.right & ~evidence.reachable][0]
    assert browser.selected() == first
    browser.choose("#order", "node")
    browser.choose("#search", "nothing like this")
    assert not browser.driver.find_element("id", "node").is_displayed()
    assert browser.driver.find_element("id", "nothing").is_displayed()
    browser.click("#clear")  # of the filters, not of the order
    assert browser.selected() == evidence.nodes.min()
    assert not browser.driver.find_element("id", "clear").is_displayed()
    # A link to a node that the filters leave out takes them away, and says so.
    right = evidence.nodes[evidence.right][0]
    browser.show(f"#node={right}&status=wrong&gamma=0~&support=1~1&order=node")
    assert browser.selected() == right and browser.shown() == len(evidence.nodes)
    assert "order=node" in browser.run("return location.hash")
    assert browser.driver.find_element("id", "notice").is_displayed()
    browser.click("#notice-close")
    assert not browser.driver.find_element("id", "notice").is_displayed()
    # A number that no node has is told from one that another part of the graph has.
    told = []
    for node in (len(evidence.labels), 10**6):
        browser.show(f"#node={node}")
        told.append(browser.text("#notice-text").replace(str(node), "", 1))
    assert told[0] == told[1]
    # What was picked in a picture is taken away alone.
    browser.show("#nodes&status=wrong&gamma=0~&support=1~1")
    browser.click("[data-pick=support]")
    assert browser.shown() == (~evidence.right & evidence.reachable).sum()
    assert len(browser.texts(".pick")) == 1
    # A filter about two predictions follows what is compared.
    browser.show("#nodes&pair=changed")
    browser.run("document.getElementById('compare-panel').scrollIntoView()")
    browser.until("document.querySelector('#compare-b option')")
    browser.choose("#compare-b", "0 oracle")
    assert browser.shown() == (~evidence.right).sum()


# The list, counted again: what each filter leaves, in what order, and the numbers of its rows.


@pytest.fixture(scope="module")
def torn(tmp_path_factory):
    """Some nodes have no answer, some tie, some are unlike all of their neighbours."""
    exposure, y = make_exposure(200)
    edges = torch.randint(200, (2, 500), generator=torch.Generator().manual_seed(1))
    logits = {f"own {j}": Moved(j).logits(exposure)[0] for j in range(2)}
    held = gather(exposure, y, edge_index=edges, all_classes=True, repairs=logits)
    place = np.arange(200)
    margin = np.select([place % 5 == 1, place % 7 == 3], [np.nan, 5e-8], held.margin)
    classes = replace(held.classes, chance=np.where(place % 5 == 1, np.nan, held.classes.chance))
    evidence = replace(held, margin=margin, classes=classes)
    path = tmp_path_factory.mktemp("torn") / "report.html"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gnn_repair.reporting.writing.gather", lambda *_, **__: evidence)
        some = {"other": gather(exposure, y, np.flatnonzero(OTHERS), repairs=logits)}
        return report(exposure, y, path, beside=some), evidence


OTHERS = np.arange(200) % 3 != 1
"""Nodes of the run beside it."""


def listed(browser, address: str) -> pd.DataFrame:
    """The file of the listed nodes."""
    browser.show(f"#{address}")
    return pd.read_csv(io.StringIO(browser.saved("#nodes-csv")))


def leads(logits, true):
    own = logits[np.arange(len(true)), true]
    others = np.where(np.eye(logits.shape[1], dtype=bool)[true], -np.inf, logits)
    return own - others.max(1)


def test_every_filter_leaves_its_nodes_in_their_order(browser, torn):
    path, e = torn
    true, said, wrong, can = e.true_class, e.predictions[e.nodes], ~e.right, e.margin > 1e-7
    frozen, degree, like = leads(e.frozen_logits, true), e.degree, e.homophily
    repairs = [leads(one.logits, true) for one in e.corrections]
    fixed = [one.predictions == true for one in e.corrections]
    changed = e.corrections[0].predictions != e.corrections[1].predictions
    moved = 1 - 1 / (1 + np.abs(repairs[0] - repairs[1]))
    names = e.nodes.astype(str)
    browser.open(path)
    for address, mask in {
        "status=wrong": wrong, "status=right": ~wrong, "status=reachable": wrong & can,
        "status=unreachable": wrong & (e.margin <= 1e-7), "status=beyond": wrong & ~can,
        "status=can": can, "status=cannot": e.margin <= 1e-7, "label=0": true == 0,
        "predicted=0": said == 0, "predicted=2&status=wrong": (said == 2) & wrong,
        "from=4": degree >= 4, "to=4": degree <= 4, "from=5&to=5": degree == 5,
        "repair=1 corrected": wrong & fixed[1], "repair=0 broken": ~wrong & ~fixed[0],
        "repair=1 missed": wrong & ~fixed[1], "repair=0 wrong": ~fixed[0],
        "gamma=0~2": can & (e.margin < 2), "gamma=~0": e.margin <= 1e-7,
        "homophily=0.2~0.5": (like > 0.2 + 1e-6) & (like <= 0.5 + 1e-6), "homophily=~0": like == 0,
        "support=2~3": can & (e.support >= 2) & (e.support <= 3),
        "q=1": np.char.startswith(names, "1"), "q=class 3": (true == 3) | (said == 3),
        "a=0 frozen&b=0 own 1&pair=b": wrong & fixed[1],
        "a=0 frozen&b=0 own 1&pair=none": wrong & ~fixed[1],
        "a=0 own 0&b=0 own 1&pair=changed": changed,
        "a=0 frozen&b=0 oracle&pair=b": wrong & can,
        "a=0 own 0&b=1 own 1&pair=changed": changed & OTHERS[e.nodes],
    }.items():  # fmt: skip
        assert 0 < mask.sum() < 200, address
        assert listed(browser, f"nodes&{address}")["node"].tolist() == e.nodes[mask].tolist()
    for order, key in {
        "margin": e.margin, "margin-high": -e.margin, "frozen": frozen, "frozen-high": -frozen,
        "gain": frozen - e.margin, "gain 1": frozen - repairs[1], "degree": -degree,
        "degree-low": degree, "node": e.nodes, "changed&a=0 own 0&b=0 own 1": ~changed - moved,
    }.items():  # fmt: skip
        expected = e.nodes[np.argsort(np.where(np.isnan(key), np.inf, key), kind="stable")]
        assert listed(browser, f"nodes&order={order}")["node"].tolist() == expected.tolist(), order
    rows = listed(browser, "nodes&order=list")
    share = e.classes.share[np.arange(200), true]
    for name, values in {
        "true class": [f"class {c}" for c in true], "degree": degree, "gamma": e.margin,
        "frozen prediction": [f"class {c}" for c in said], "frozen margin": frozen,
        "neighbours of its class": like, "support": e.support, "chance": e.classes.chance,
        "share of weight to move": np.where(np.isfinite(share), share, np.nan),
        "own 1": [f"class {c}" for c in e.corrections[1].predictions], "margin own 1": repairs[1],
    }.items():  # fmt: skip
        expected = pd.Series(values, name=name)
        pd.testing.assert_series_equal(rows[name], expected, check_dtype=False, atol=1e-5)


def test_chance_of_a_cell_is_the_mean_over_nodes_that_have_one(browser, torn):
    path, e = torn
    browser.open(path)
    tip = (
        "document.querySelector(`[data-cell='${arguments[0]}']`).focus();"
        " return document.getElementById('tip').textContent"
    )
    said, seen = e.predictions[e.nodes], 0
    for true, predicted in product(range(e.frozen_logits.shape[1]), repeat=2):
        cell = (e.true_class == true) & (said == predicted)
        chance = e.classes.chance[cell]
        if true == predicted or np.isnan(chance).all():
            continue
        told = browser.run(tip, f"{true} {predicted}")
        assert f"chance {100 * np.nanmean(chance):.0f} %" in told
        seen += np.isnan(chance).any()
    assert seen


def test_one_sentence_is_announced(browser, demo):
    path, evidence = demo
    browser.open(path, f"#node={evidence.nodes[0]}")
    regions = browser.run(
        "return [...document.querySelectorAll('[aria-live], [role=status], [role=alert],"
        " [role=log], output')].filter(e => e.getAttribute('aria-live') !== 'off').map(e => e.id)"
    )
    assert sorted(regions) == ["announce", "notice"]
    browser.press("ARROW_DOWN", "ARROW_DOWN")
    headline = browser.text("#certificate .headline")
    said = "document.getElementById('announce').textContent === arguments[0]"
    browser.until(said, f"Node {evidence.nodes[2]}: {headline}")
    browser.choose("#filter-status", "wrong")
    browser.until(said, browser.text("#count"))


def test_keys_do_what_the_mouse_does(browser, demo):
    path, evidence = demo
    browser.open(path)
    # One stop a picture; arrows walk inside, around its end; Enter shows the nodes.
    stops = browser.run(
        "return [...document.querySelectorAll('.chart svg')].map(svg =>"
        " svg.querySelectorAll('.go[tabindex=\"0\"]').length)"
    )
    assert set(stops) == {1}
    browser.run("document.querySelector('.chart svg .go[data-cell]').focus()")
    marks, places = "[...document.activeElement.closest('svg').querySelectorAll('.go')]", []
    for key in ("ARROW_LEFT", "ARROW_RIGHT", "ARROW_RIGHT"):
        browser.press(key)
        places.append(browser.run(f"return {marks}.findIndex(mark => mark.tabIndex === 0)"))
        assert places[-1] == browser.run(f"return {marks}.indexOf(document.activeElement)")
    assert places == [browser.run(f"return {marks}.length") - 1, 0, 1]
    assert browser.text("#tip") and not browser.run("return document.getElementById('tip').hidden")
    assert browser.run("return document.activeElement.getAttribute('aria-describedby')") == "tip"
    browser.press("ESCAPE")
    assert browser.run("return document.getElementById('tip').hidden")
    browser.press("ENTER")
    assert browser.run("return document.getElementById('overview').hidden")
    assert 0 < browser.shown() < len(evidence.nodes)
    # A neighbour that is shown opens by key.
    mark = "document.querySelector('#neighbourhood .go[tabindex=\"0\"]')"
    other = int(browser.run(f"{mark}.focus(); return {mark}.dataset.source"))
    browser.press("ENTER")
    assert browser.selected() == other


def test_arrows_scroll_a_long_table(browser, demo):
    browser.open(demo[0], "#node=2", PHONE)  # terms from everybody
    browser.run("document.getElementById('terms').focus()")
    browser.press("ARROW_DOWN", "ARROW_DOWN")
    browser.until("document.getElementById('terms').scrollTop > 0")
    assert browser.selected() == 2
    browser.run("document.getElementById('list').focus()")
    browser.press("ARROW_UP")
    assert browser.selected() != 2


def test_a_node_is_shown_from_its_head_on(browser, demo):
    path, _ = demo
    browser.open(path)
    browser.unfold()
    browser.run("window.scrollTo(0, document.body.scrollHeight)")
    before = browser.run("return window.scrollY")
    browser.click(".chart .go", -1)
    head = browser.run("return document.getElementById('node-head').getBoundingClientRect().top")
    assert 0 <= head < 300 and before > 500
    # Back leads to the picture that was clicked.
    browser.driver.back()
    browser.until("Math.abs(window.scrollY - arguments[0]) < 5", before)
    browser.click("#tab-nodes")
    browser.click("#tab-overview")
    browser.until("Math.abs(window.scrollY - arguments[0]) < 5", before)
    # The names of the views are no places to scroll to.
    for fragment in ("#nodes", "#overview"):
        browser.open(path, fragment)
        browser.settle()
        assert browser.run("return window.scrollY") == 0


def test_a_touch_shows_a_card_until_another_takes_it_away(browser, demo):
    """A real touch: lifting it makes the pointer leave and moves the focus, which hid the card."""
    path, evidence = demo
    send = browser.driver.execute_cdp_cmd
    send("Emulation.setTouchEmulationEnabled", {"enabled": True, "maxTouchPoints": 1})
    lines = {}
    try:
        browser.open(path, f"#node={evidence.nodes[0]}", PHONE)
        for mark in (
            "#plane [data-point=oracle]",
            "#logits path",
            "circle.vertex",
            "#node-head h2",
        ):
            x, y = browser.run(
                "const mark = document.querySelector(arguments[0]);"
                "mark.scrollIntoView({block: 'center'});"
                "const box = mark.getBoundingClientRect();"
                "return [box.left + box.width / 2, box.top + box.height / 2]",
                mark,
            )
            for kind, points in (("touchStart", [{"x": x, "y": y}]), ("touchEnd", [])):
                send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
            browser.settle()
            hidden = browser.run("return document.getElementById('tip').hidden")
            lines[mark] = [] if hidden else browser.texts("#tip div")
    finally:
        send("Emulation.setTouchEmulationEnabled", {"enabled": False})
    oracle, bar, vertex, nothing = lines.values()
    assert oracle[0] == "Oracle" and bar and nothing == []
    assert vertex[0].startswith(("node ", "itself")) and vertex[1].startswith("is class ")
