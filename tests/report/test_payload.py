"""The page's data: exact, small, and harmless inside a script block."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

from gnn_repair.errors import InputError
from gnn_repair.reporting import gather, report, report_results
from gnn_repair.reporting.payload import (
    run_payload,
)
from tests.helpers.report.pages import arrays_of, payload_of
from tests.helpers.report.report_worlds import Moved, Tilted, make_exposure

NASTY = ["</script><script>alert(1)</script>", "<!-- & -->", "@@PAYLOAD@@", "line\u2028end"]


def test_the_payload_is_the_evidence():
    exposure, y = make_exposure(groups=2)
    evidence = gather(exposure, y, repairs={"reweighting": Tilted(), "set_translation": Moved()})
    words, arrays = run_payload(evidence, class_names=NASTY)
    assert words["classes"] == NASTY
    full = evidence.contributions[evidence.rows]
    table = arrays["contributions"].reshape(-1, 4)
    np.testing.assert_allclose(table[arrays["rows"]], full, rtol=1e-6)
    np.testing.assert_array_equal(arrays["margins"], evidence.margin)
    lengths = arrays["lengths"].ravel()
    np.testing.assert_array_equal(np.diff(evidence.segments), lengths)
    counts, terms = arrays["witness_lengths"], arrays["witness_columns"]
    places = np.repeat(evidence.starts[:-1], counts) + terms
    witness = np.zeros_like(evidence.witness)
    witness[places] = arrays["witness_values"]
    np.testing.assert_allclose(witness, evidence.witness, rtol=1e-6)


def test_a_large_report_opens_a_sample_and_counts_everybody(tmp_path, monkeypatch):
    exposure, y = make_exposure(nodes=600, groups=2)
    edges = torch.randint(600, (2, 900), generator=torch.Generator().manual_seed(0))
    repairs = {"reweighting": Tilted(), "set_translation": Moved()}
    given = {"edge_index": edges, "repairs": repairs}
    whole = report(exposure, y, tmp_path / "whole.html", **given)
    monkeypatch.setattr("gnn_repair.reporting.payload.EXPLORED_BYTES", 40_000)
    page = report(exposure, y, tmp_path / "part.html", **given)
    run, everyone, some = payload_of(page)["run"], arrays_of(whole), arrays_of(page)
    count = run["explored"]
    assert 20 < count < 300
    assert f"a sample of {count:,}" in payload_of(page)["subtitle"]
    # What is counted is there for all nodes, in another order.
    assert len(some["nodes"]) == 600 and set(some["nodes"]) == set(everyone["nodes"])
    back = {node: i for i, node in enumerate(everyone["nodes"].tolist())}
    places = [back[node] for node in some["nodes"].tolist()]
    for name in ("margins", "degree", "support", "chance", "repair_0_predictions"):
        np.testing.assert_array_equal(some[name], everyone[name][places])
    # What is shown of single nodes is there for the first ones, as it was.
    places = places[:count]
    assert places == sorted(places)
    assert np.diff(places).max() <= 3 * 600 / count  # spread over the list
    for name in ("frozen_logits", "fixed_logits", "repair_1_logits"):
        np.testing.assert_array_equal(
            some[name].reshape(-1, 4), everyone[name].reshape(-1, 4)[places]
        )
    kept = some["kept"].astype(bool)  # not the node with a term from everybody
    assert (~kept).sum() == run["left_out"] == int(2 in some["nodes"][:count])
    lengths = everyone["lengths"].reshape(-1, 2)[places] * kept[:, None]
    np.testing.assert_array_equal(some["lengths"].reshape(-1, 2), lengths)
    starts = np.append(0, np.cumsum(everyone["lengths"].astype(int)))[::2]
    shown = [np.arange(starts[i], starts[i + 1]) for i in np.array(places)[kept]]
    terms = np.concatenate(shown)
    for name in ("coefficients", "repair_0_coefficients"):
        np.testing.assert_array_equal(some[name], everyone[name][terms])
    told, tells = (n["contributions"].reshape(-1, 4)[n["rows"]] for n in (everyone, some))
    np.testing.assert_array_equal(tells, told[terms])
    np.testing.assert_array_equal(
        some["sources"][some["rows"]], everyone["sources"][everyone["rows"][terms]]
    )
    size = sum(len(some[name].tobytes()) for name in set(some) - {"nodes", "margins", "edges"})
    assert len(some["frozen_logits"]) == 4 * count and size < 40_000 + 600 * 30


def test_the_page_is_one_file_with_nothing_outside(tmp_path):
    exposure, y = make_exposure()
    title = "<img src=x onerror=alert(1)>@@STYLE@@"
    path = report(exposure, y, tmp_path / "new" / "r.html", class_names=NASTY, title=title)
    page = path.read_text(encoding="utf-8")
    assert payload_of(path)["run"]["classes"] == NASTY
    assert payload_of(path)["title"] == title
    assert "<title>&lt;img src=x onerror=alert(1)&gt;@@STYLE@@</title>" in page
    assert page.count("<script") == page.count("</script>") == 2
    outside = re.findall(r"https?://[^\"'\s)]+", page)
    assert set(outside) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", page)
    assert [p.name for p in path.parent.iterdir()] == ["r.html"]


def test_results_without_accuracies_are_refused(tmp_path):
    import pandas as pd

    columns = ["dataset", "backbone", "split", "method", "part", "metric", "value"]
    empty = pd.DataFrame(columns=columns)
    with pytest.raises(InputError, match="no test accuracy"):
        report_results(empty, tmp_path / "r.html")
