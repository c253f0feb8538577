"""One node in a real browser: what-if mixtures, its picture, its table of terms, files of them."""

from __future__ import annotations

import base64
from xml.etree import ElementTree

import numpy as np
import pytest

from gnn_repair.reporting import gather, report
from tests.helpers.report.browser import served
from tests.helpers.report.report_worlds import Moved, Tilted, make_exposure

# Mixtures that are set with sliders.


def margin(logits: np.ndarray, c: int) -> float:
    return float(logits[c] - np.delete(logits, c).max())


def test_a_slider_moves_mass_within_its_group(browser, small):
    path, evidence = small
    i = next(k for k in range(3, 30) if np.diff(evidence.starts)[k] >= 3)
    groups, first = len(evidence.groups), evidence.starts[i]
    ends = evidence.segments[i * groups : (i + 1) * groups + 1] - first
    term = int(ends[np.flatnonzero(np.diff(ends) > 1)[0]]) + 1
    group = int(np.searchsorted(ends, term, side="right")) - 1
    low, high = ends[group], ends[group + 1]
    lam = evidence.coefficients[first : evidence.starts[i + 1]].copy()
    table = evidence.contributions[evidence.rows[first : evidence.starts[i + 1]]]
    mass, others = lam[low:high].sum(), [k for k in range(low, high) if k != term]
    browser.open(path, f"#node={evidence.nodes[i]}")
    # Where one term has all the mass, what it gives up is shared out equally.
    for share in (0.8, 0.25, 1.0, 0.4):
        browser.choose(f"input[data-term='{term}']", str(share))
        rest = lam[others].sum()
        left = (1 - share) * mass
        lam[others] = lam[others] * left / rest if rest else left / len(others)
        lam[term] = share * mass
        logits = evidence.fixed_logits[i] + lam @ table
        expected = margin(logits, int(evidence.true_class[i]))
        found = float(browser.run("return document.getElementById('what-if-margin').dataset.value"))
        assert found == pytest.approx(expected, abs=1e-4)
        assert f"{abs(expected):.3f}" in browser.text("#what-if-row")
    assert len(browser.texts("#what-if-point path")) == 1
    browser.open(path, browser.run("return location.hash"))
    assert browser.run("return document.getElementById('what-if-margin').dataset.value") == str(
        found
    )
    browser.click("[data-set=oracle]")
    found = float(browser.run("return document.getElementById('what-if-margin').dataset.value"))
    assert found == pytest.approx(evidence.margin[i], abs=1e-4)


def test_a_what_if_keeps_the_plane_in_sight_and_the_table_follows(browser, small):
    browser.open(small[0], "#node=2")  # terms from everybody
    before = browser.text("#terms [data-row=total]")
    browser.run("document.getElementById('terms-panel').scrollIntoView()")
    assert not browser.run("return document.querySelector('#plane.floating')")
    browser.choose("#terms input[type=range]", "0.9")
    browser.until("document.querySelector('#plane.floating') !== null")
    assert browser.run("return document.getElementById('weighting').value") == "what_if"
    assert browser.text("#terms [data-row=total]") != before
    assert browser.run(
        "const box = document.getElementById('plane').getBoundingClientRect();"
        "return box.bottom <= innerHeight && box.right <= innerWidth && box.width > 200"
    )
    browser.run("window.scrollTo(0, 0)")
    browser.until("document.querySelector('#plane.floating') === null")


# The picture.

SPOTS = (
    "return Object.fromEntries([...document.querySelectorAll(`#plane [data-${arguments[0]}]`)]"
    ".map(m => { const b = m.getBBox(); return [m.dataset[arguments[0]],"
    " [b.x + b.width / 2, b.y + b.height / 2]]; }))"
)


def test_every_view_draws_every_node_without_a_complaint(browser, small, tmp_path):
    path, evidence = small
    n, binary = len(evidence.nodes), make_exposure(classes=2, groups=2)
    walk = (
        "const faults = []; for (let step = 0; step < arguments[0]; step++) {"
        "  const text = document.getElementById('nodes').innerHTML;"
        "  if (/NaN|undefined|Infinity/.test(text) || !document.querySelector('#plane .region'))"
        "    faults.push(location.hash);"
        "  document.dispatchEvent(new KeyboardEvent('keydown', {key: arguments[1]}));"
        "} return faults"
    )
    browser.open(report(*binary, tmp_path / "r.html"), f"#node={gather(*binary).nodes[0]}")
    assert browser.run(walk, n, "ArrowDown") == []
    # Every node in one view, from the end a third of them in the others.
    browser.open(path, f"#node={evidence.nodes[0]}")
    for view, key, steps in (("margins", "Down", n), ("three", "Up", n // 3), ("spread", "Up", 9)):
        browser.choose("#view", view)
        assert browser.run(walk, steps, f"Arrow{key}") == []
    assert browser.selected() == evidence.nodes[n - 1 - n // 3 - 9]


def test_a_far_prediction_is_named_at_the_edge_and_does_not_shrink_the_rest(browser, tmp_path):
    exposure, y = make_exposure(classes=5)
    far = exposure.frozen_logits[0] + Moved().shift(exposure)[0]
    far[range(40), y] += 4000
    repairs = {"reweighting": Tilted(), "set_translation": Moved(), "far": far}
    browser.open(report(exposure, y, tmp_path / "r.html", repairs=repairs), "#node=4&hide=none")
    assert list(browser.run(SPOTS, "off")) == ["far"]
    assert "far (outside)" in browser.text("#plane")
    near = np.array(list(browser.run(SPOTS, "point").values()))
    assert np.ptp(near, axis=0).max() > 60
    browser.click("#fit")
    assert browser.run(SPOTS, "off") == {}
    spots = browser.run(SPOTS, "point")
    del spots["far"]
    assert np.ptp(np.array(list(spots.values())), axis=0).max() < 12


def zoomed(browser) -> float:
    """Pixels between the frozen point and the oracle."""
    spots = browser.run(SPOTS, "point") | browser.run(SPOTS, "off")
    return float(np.hypot(*np.subtract(spots["frozen"], spots["oracle"])))


def test_wheel_keys_and_pinch_zoom(browser, demo):
    path, evidence = demo
    address = f"#node={evidence.nodes[4]}"
    browser.open(path, address)
    before, at = zoomed(browser), browser.run(SPOTS, "point")["frozen"]
    wheel = (
        "const plane = document.getElementById('plane'), area = plane.getBoundingClientRect();"
        "plane.dispatchEvent(new WheelEvent('wheel', {deltaY: 120, clientX: area.left +"
        " arguments[0], clientY: area.top + arguments[1], bubbles: true, cancelable: true}))"
    )
    browser.run("window.scrollTo(0, 0)")
    # A wheel that turns while the page still scrolls goes on scrolling it.
    browser.until("performance.now() > arguments[0]", browser.run("return performance.now() + 260"))
    browser.run(wheel, *at)
    assert zoomed(browser) == pytest.approx(before * np.exp(-0.3), rel=0.02)
    # The point under the pointer stays where it is.
    np.testing.assert_allclose(browser.run(SPOTS, "point")["frozen"], at, atol=0.5)
    browser.open(path, address)
    browser.run("document.getElementById('plane').focus()")
    browser.press("SUBTRACT")
    assert zoomed(browser) == pytest.approx(before / 2, rel=0.02)
    chosen, middle = browser.selected(), browser.run(SPOTS, "point")["frozen"]
    browser.press("ARROW_LEFT", "ARROW_UP")
    assert browser.selected() == chosen
    right, down = np.subtract(browser.run(SPOTS, "point")["frozen"], middle)
    assert right > 20 and down > 20
    browser.choose("#view", "three")  # which has a frame of its own
    assert "frame=" not in browser.run("return location.hash")
    browser.open(path, address)
    browser.run(
        "const plane = document.getElementById('plane'), area = plane.getBoundingClientRect();"
        "const [x, y] = arguments, touch = (kind, id, dx) => plane.dispatchEvent(new PointerEvent("
        "  kind, {pointerType: 'touch', pointerId: id, bubbles: true,"
        "  clientX: area.left + x + dx, clientY: area.top + y}));"
        "touch('pointerdown', 1, -30); touch('pointerdown', 2, 30);"
        "touch('pointermove', 1, -20); touch('pointermove', 2, 20);"
        "touch('pointerup', 1, 0); touch('pointerup', 2, 0);",
        *at,
    )
    assert zoomed(browser) == pytest.approx(before / 1.5, rel=0.02)


def test_zooming_ends_before_numbers_do(browser, small):
    """Without an end the ticks of the axes were counted for ever, and the page hung."""
    ticks = "#plane text.small[text-anchor=middle]"
    for button in ("closer", "farther"):
        browser.open(small[0], "#node=3")
        browser.run(
            "for (let i = 0; i < 90; i++) document.getElementById(arguments[0]).click()", button
        )
        words, link = browser.texts(ticks), browser.run("return location.hash")
        assert len(words) == len(set(words)) > 2, words
        browser.open(small[0], link)
        assert browser.texts(ticks) == words


def test_a_rival_cannot_be_chosen_twice(browser, demo):
    path, evidence = demo
    browser.open(path, f"#node={evidence.nodes[4]}")
    read = (
        "return ['rival-one', 'rival-two'].map(id => { const s = document.getElementById(id);"
        " return [s.value, [...s.options].map(o => o.value)]; })"
    )
    for field in ("#rival-one", "#rival-two", "#rival-one"):
        (_, options), _ = browser.run(read)
        browser.choose(field, options[-1] if field == "#rival-one" else options[2])
        (one, ones), (two, twos) = browser.run(read)
        assert one != two and two not in ones and one not in twos
        assert str(evidence.true_class[4]) not in {*ones, *twos}
        assert len(ones) == len(twos) == evidence.num_classes - 2


# The table of terms adds up on screen and on paper.

READ = (
    "return [...document.querySelectorAll('#terms table:not(.part) tr')].map(row =>"
    " [row.dataset.row || (row.dataset.term === undefined ? 'head' : 'term'),"
    "  [...row.cells].map(cell => cell.textContent)])"
)
PAPER_WIDTH = 718
"""Pixels of an A4 sheet between margins of 10 mm."""


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    """Node 2 has 420 terms in each of two groups, ten classes."""
    exposure, y = make_exposure(nodes=420, classes=10, groups=2)
    path = tmp_path_factory.mktemp("terms") / "r.html"
    repairs = {"reweighting": Tilted(), "set_translation": Moved()}
    return report(exposure, y, path, nodes=range(2, 9), repairs=repairs)


def number(text: str) -> float:
    return 0.0 if text in ("·", "") else float(text.replace("−", "-").replace("+", ""))


def test_a_hub_s_terms_come_in_portions_and_every_column_adds_up(browser, hub):
    """Thousands of rows with sliders take seconds; the rest stays added up meanwhile."""
    browser.open(hub, "#node=2&weigh=what_if")
    before, words = browser.run(READ), []
    browser.choose("#terms input[type=range]", "0.3")
    assert browser.run(READ)[-1][1] != before[-1][1]
    for listed in (25, 425, 825, 840):
        (_, names), *body = browser.run(READ)
        assert [kind for kind, _ in body].count("term") == listed
        for j, name in enumerate(names):
            if name.startswith(("α", "λ", "over")):
                values = {"total": 0.0, "rest": 0.0}
                for kind, cells in body:
                    values["total" if kind == "total" else "rest"] += number(cells[j])
                assert values["rest"] == pytest.approx(values["total"], abs=6e-4 * len(body)), name
        words.append(browser.text("#terms-more"))
        browser.click("#terms-more button") if listed < 840 else None
    assert words[1].endswith("Show 400 more") and words[2].endswith("Show all 840 terms")
    assert words[3] == ""
    # Of so many the witness's are drawn in any case.
    used = browser.texts("#terms tr.active")
    assert len(browser.texts("#plane circle.used")) == len(used) > 0


def test_what_is_pressed_in_the_table_keeps_the_focus(browser, hub):
    browser.open(hub, "#node=2")
    focused = "return document.activeElement.textContent"
    values = (
        "return [...document.querySelectorAll('#terms tr[data-term] td.text')]"
        ".filter((_, j) => j % 3 === 0).map(cell => parseInt(cell.textContent))"
    )
    browser.run("document.querySelector('#terms th[data-column=source] button').focus()")
    for turn in (1, -1):
        browser.press("ENTER")
        assert browser.run(focused) == "Source"
        found = browser.run(values)
        assert found[::turn] == sorted(found) and found[0] == (0 if turn == 1 else 419)
    browser.run("document.querySelector('#terms th[data-column=alpha] button').focus()")
    browser.press("SPACE")
    assert browser.run(focused) == "α frozen"
    assert "sort=down%20alpha" in browser.run("return location.hash")
    browser.run("document.querySelector('#terms-more button').focus()")
    browser.press("ENTER")
    assert browser.run(focused).endswith("more")


def test_paper_keeps_every_column_in_sight_and_no_number_is_broken(browser, hub):
    browser.open(hub, "#node=2", width=PAPER_WIDTH)
    heads = browser.run(READ)[0][1][1:]  # without the sliders
    with browser.medium(media="print"):  # and the events of a real print
        browser.run("window.dispatchEvent(new Event('beforeprint'))")
        seen = browser.run(
            "return [...document.querySelectorAll('#terms th')].filter(c => c.offsetParent)"
            ".map(c => [c.textContent, c.getBoundingClientRect().right])"
        )
        rest = browser.run(
            "return [...document.querySelectorAll('#terms tr[data-row=other]')]"
            ".filter(c => c.offsetParent).length"
        )
        broken, cells = browser.run(
            "const cells = [...document.querySelectorAll('#readout td, #terms td, .sides td')]"
            " .filter(cell => cell.offsetWidth && /^[+−]?[\\d.]+$/.test(cell.textContent));"
            "const lines = cell => { const range = document.createRange();"
            "  range.selectNodeContents(cell);"
            "  return new Set([...range.getClientRects()].map(box => Math.round(box.top))).size; };"
            "return [cells.filter(cell => lines(cell) > 1).map(cell => cell.textContent),"
            " cells.length]"
        )
        browser.run("window.dispatchEvent(new Event('afterprint'))")
    assert sorted(set(heads)) == sorted({name for name, _ in seen})
    repeated = 4 + len(browser.texts("table.part"))  # what stands on the left of every part
    assert len(seen) < len(heads) + 4 * repeated
    assert max(right for _, right in seen) <= PAPER_WIDTH
    assert rest == 2 and broken == [] and cells > 40
    assert browser.texts("table.part, table.cut") == []
    made = browser.driver.execute_cdp_cmd("Page.printToPDF", {})
    assert base64.b64decode(made["data"])[:5] == b"%PDF-"
    browser.open(hub, width=PAPER_WIDTH)
    for event, shown in (("beforeprint", True), ("afterprint", False)):
        browser.run("window.dispatchEvent(new Event(arguments[0]))", event)
        assert browser.run("return document.querySelector('#story details').open") is shown


# Files: pictures, and terms that lie beside a large page.


def test_pictures_are_files_of_their_own(browser, small, tmp_path):
    path, evidence = small
    place = {"behavior": "allow", "downloadPath": str(tmp_path), "eventsEnabled": False}
    browser.driver.execute_cdp_cmd("Browser.setDownloadBehavior", place)

    def saved(what: str, kind: str, name: str) -> bytes:
        browser.click(f"[aria-label='Save {what} as {kind.upper()}']")
        file = tmp_path / f"{name}.{kind}"
        browser.wait(lambda: file.is_file() and file.stat().st_size, f"the file {file.name}")
        return file.read_bytes()

    node = evidence.nodes[0]
    browser.open(path, f"#node={node}")
    for what in ("logits", "neighbourhood", "polytope"):
        text = saved(what, "svg", f"{what}-node-{node}").decode()
        root = ElementTree.fromstring(text)
        assert root.tag == "{http://www.w3.org/2000/svg}svg" and float(root.get("width")) > 100
        assert "var(" not in text and "rgb(" in text
    drawn = browser.run("return document.querySelector('#plane .hull').getAttribute('points')")
    assert drawn in text
    image = saved("polytope", "png", f"polytope-node-{node}")
    assert image[:8] == b"\x89PNG\r\n\x1a\n"
    box = browser.run("return document.querySelector('#plane svg').viewBox.baseVal.width")
    assert int.from_bytes(image[16:20], "big") == 2 * int(box)
    browser.open(path)
    browser.unfold()
    cards = browser.run(
        "return [...document.querySelectorAll('.chart')].map(c => [c.querySelector('h2')."
        "textContent, c.querySelectorAll('.tools button').length, c.querySelector('svg') !== null])"
    )
    assert all(buttons == 2 for _, buttons, drawn in cards if drawn) and len(cards) >= 7
    assert b"reweighting" in saved("Accuracy", "svg", "accuracy")


def test_a_browser_reads_parts_on_demand(browser, tmp_path, monkeypatch):
    monkeypatch.setattr("gnn_repair.reporting.payload.PART_BYTES", 300)
    exposure, y = make_exposure(groups=2)
    evidence = gather(exposure, y)
    whole = report(exposure, y, tmp_path / "whole.html")
    path = report(exposure, y, tmp_path / "big page.html", single_file=False)
    read = (
        "return [document.querySelector('#certificate').textContent,"
        " document.querySelector('#terms').textContent,"
        " document.querySelector('#plane .hull').getAttribute('points')]"
    )
    expected = {}
    asked = (0, 1, 8, 16, 24, 30, 39, 24, 0)  # more than are kept
    for i in asked:
        browser.open(whole, f"#node={evidence.nodes[i]}")
        expected[i] = browser.run(read)
    with served(path) as server:
        browser.driver.get("about:blank")
        browser.requests()
        for i in asked:
            browser.driver.get(f"{server.address}#node={evidence.nodes[i]}")
            browser.until(
                "document.querySelector('#node-head h2')?.textContent === arguments[0]",
                f"Node {evidence.nodes[i]}",
            )
            assert browser.run(read) == expected[i]
        files = [url for url in browser.requests() if "parts" in url]
        assert all(url.startswith(server.address) for url in files)
        # A part that comes late is not drawn over what was asked for since.
        late, last = (evidence.nodes[i] for i in (1, 8))  # only one of them is kept
        browser.run(
            "const own = window.fetch; let wait = 300; window.fetch = (...given) => {"
            "  const late = new Promise(done => setTimeout(done, wait)); wait = 0;"
            "  return late.then(() => own(...given)); };"
            "location.hash = `#node=${arguments[0]}`;"
            "setTimeout(() => { location.hash = `#node=${arguments[1]}`; }, 50)",
            int(late),
            int(last),
        )
        browser.until(
            "document.querySelector('#node-head h2').textContent === arguments[0]", f"Node {last}"
        )
        browser.until(
            "performance.now() > arguments[0]", browser.run("return performance.now() + 400")
        )
        assert browser.selected() == last
        # The table once, then one part per range; one that was dropped is read again.
        assert sum("table" in url for url in files) == 1
        assert len(set(files)) < len(files) < 1 + len(asked)
    browser.open(path, f"#node={evidence.nodes[0]}")  # as a file
    browser.until("document.getElementById('notice-text').textContent.includes('gnn-repair view')")
    assert browser.messages()
