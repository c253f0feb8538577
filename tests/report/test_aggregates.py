"""Every figure of the overview, recomputed from the rows of the nodes by code that shares nothing.

Two worlds: linear programs of which some have no answer, with unlabelled nodes; and a nonlinear
head with undecided nodes.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from gnn_repair.oracle import metrics, reach
from gnn_repair.oracle.problems import FAILED
from gnn_repair.reporting import gather, report
from gnn_repair.reporting.payload import run_payload
from tests.helpers.report.browser import missing
from tests.helpers.report.report_worlds import Moved, make_exposure

LINES = "return [...document.querySelectorAll(arguments[0])].map(mark => mark.tip)"
COLUMNS = ".chart[aria-label='Reach by class'] svg g > rect[fill=transparent]"


@pytest.fixture(scope="module", params=["programs", "head"])
def world(request, tmp_path_factory, nonlinear_world):
    """A page, its rows (wrong, true, predicted, can, chance; ``can`` is None where nobody knows),
    and a repair's predictions."""
    if request.param == "head":
        path, exposure, y = nonlinear_world
        return path, rows_of(reach(exposure, y)), None
    exposure, y = make_exposure(nodes=60, seed=6)
    y[[4, 9]] = -1

    def unsure(*arguments, **options):
        solution = solved(*arguments, **options)
        status, margin = solution.status.copy(), solution.margin.copy()
        lost = (solution.node % 7 == 3) & (solution.target == y.numpy()[solution.node])
        status[lost], margin[lost] = FAILED, np.nan
        return replace(solution, status=status, margin=margin)

    solved = metrics.solve
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metrics, "solve", unsure)
        path = tmp_path_factory.mktemp("rows") / "page.html"
        report(exposure, y, path, repairs={"mine": Moved()})
        rows = rows_of(reach(exposure, y))
    assert any(row["can"] is None for row in rows if row["wrong"])
    now = Moved().logits(exposure)[0].argmax(1)
    return path, rows, {row["node"]: int(now[row["node"]]) for row in rows}


def rows_of(found):
    rows = []
    for k, (true, predicted) in enumerate(zip(found.true, found.predicted, strict=True)):
        can, known = found.classes.reachable[k], found.classes.decided[k]
        others = [c for c in range(len(can)) if c not in (true, predicted)]
        rows.append(
            {
                "node": int(found.classes.node[k]),
                "true": int(true),
                "predicted": int(predicted),
                "wrong": bool(true != predicted),
                "can": bool(can[true]) if known[true] else None,
                "chance": float(np.mean([can[c] for c in others])),
            }
        )
    return rows


def per_cent(part, whole):
    return f"{100 * part / whole:.1f} %"


needs_browser = pytest.mark.skipif(bool(missing()), reason=missing() or "a browser is here")


@needs_browser
def test_tiles_columns_cells_and_moves_are_counted_from_the_rows(browser, world):
    path, rows, repaired = world
    browser.open(path)
    errors = [row for row in rows if row["wrong"]]
    can, cannot, unknown = ([r for r in errors if r["can"] is v] for v in (True, False, None))
    tiles = [t.replace("\xa0", " ") for t in browser.run(
        "return [...document.querySelectorAll('.figure')].map(tile => tile.innerText)"
    )]  # fmt: skip
    assert tiles[0].startswith(per_cent(len(rows) - len(errors), len(rows)))
    if repaired is None:  # undecided makes an interval
        low, high = len(can) / len(errors), (len(can) + len(unknown)) / len(errors)
        share = f"{100 * low:.1f}–{100 * high:.1f} %" if unknown else per_cent(low, 1)
    else:  # what was not solved counts nowhere
        share = per_cent(len(can), len(can) + len(cannot))
    assert tiles[1].startswith(share)
    chance = 100 * np.mean([row["chance"] for row in errors])
    assert float(re.search(r"chance ([\d.]+)", tiles[1])[1]) == pytest.approx(chance, abs=0.051)
    for c, lines in enumerate(browser.run(LINES, COLUMNS)):
        own = [r for r in rows if r["true"] == c]
        if repaired is not None:
            own = [r for r in own if not (r["wrong"] and r["can"] is None)]
        wrong = [r for r in own if r["wrong"]]
        counts = [int(re.search(r": (\d+)", line)[1]) for line in lines[1:4]]
        reached = [sum(r["can"] is v for r in wrong) for v in (True, False)]
        assert (lines[0], counts) == (f"class {c}", [len(own) - len(wrong), *reached])
        said = re.search(r"chance <?([\d.]+)", " ".join(lines))
        assert bool(said) == bool(wrong)
        if wrong:
            share = 100 * np.mean([r["chance"] for r in wrong])
            assert float(said[1]) == pytest.approx(share, abs=0.51)
    for first, second, *_ in browser.run(LINES, "[data-cell]"):
        a, *b = map(int, re.findall(r"class (\d)", first))
        here = [r for r in rows if (r["true"], r["predicted"]) == (a, *(b or [a]))]
        assert int(first.split(": ")[1].split()[0]) == len(here) > 0
        if b:
            counts = [sum(r["can"] is v for r in here) for v in (True, False, None)]
            found = [int(number) for number in re.findall(r"(\d+) [ruw]", second)]
            assert found == counts[: 3 if counts[2] else 2]
    if repaired is not None:
        gone = [sum(r["wrong"] is w and (repaired[r["node"]] == r["true"]) is w for r in rows)
                for w in (True, False)]  # fmt: skip
        text = browser.text(".chart[aria-label='What each repair did'] svg")
        assert f"+{gone[0]}" in text and f"−{gone[1]}" in text
    assert browser.messages() == []


@pytest.mark.parametrize("groups", [1, 2])
def test_permuted_nodes_and_classes_permute_the_page_s_data(groups):
    """Nothing on a page depends on the order in which a graph numbers nodes and classes."""
    exposure, y = make_exposure(groups=groups)
    generator = torch.Generator().manual_seed(1)
    new, named = (torch.randperm(size, generator=generator) for size in (40, 4))  # old to new
    back, old_class = new.argsort(), named.argsort()
    turned = exposure.restrict(back)  # recipients in the order of their new numbers
    turned = replace(
        turned,
        recipients=torch.arange(40),
        sources=new[turned.sources.long()].to(turned.sources.dtype),
        contributions=turned.contributions[:, :, old_class],
        fixed_logits=turned.fixed_logits[:, back][:, :, old_class],
        frozen_logits=turned.frozen_logits[:, back][:, :, old_class],
        state=turned.state[:, back],
    )
    before = gather(exposure, y, others=True)
    after = gather(turned, named[y[back]], others=True)
    place = {int(node): i for i, node in enumerate(after.nodes)}
    rows = [place[int(new[node])] for node in before.nodes]
    plain, moved = (run_payload(one)[1] for one in (before, after))
    for name in ("margins", "degree", "homophily", "support", "chance", "asked"):
        np.testing.assert_allclose(moved[name][rows], plain[name], atol=1e-6, err_msg=name)
    for name in ("frozen_logits", "fixed_logits"):
        np.testing.assert_allclose(moved[name][rows][:, named], plain[name], atol=1e-5)
    np.testing.assert_allclose(after.classes.share[rows][:, named], before.classes.share, atol=1e-6)
    np.testing.assert_array_equal(moved["predictions"][new], named[plain["predictions"].tolist()])
