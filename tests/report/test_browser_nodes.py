"""Going from node to node: search, filters, Back, links."""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers.report.browser import missing

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "a browser is here")


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
