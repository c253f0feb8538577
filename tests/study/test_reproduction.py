"""The paper's own figures, on the real data, for backbones whose training leaves little to chance.

Ten splits are trained and every test node's linear program is solved. Chameleon comes with its
splits; those of Cora are drawn, and error reach is a share of about 65 nodes there, so it has more
room. Splits and self-loops were identified with such figures in view
(docs/results/reproduction.md): this guards the protocol, it is no evidence for it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gnn_repair.catalog import DATASETS, missing_files
from gnn_repair.published import published
from gnn_repair.results.rendering import facts
from gnn_repair.study import PAPER, Store, make_tables, run_study

TOLERANCES = {"Frozen": 0.6, "True-class reach (%)": 0.6, "Error reach (%)": 2.5}


@pytest.mark.parametrize(
    ("dataset", "backbone"), [("cora", "sgc"), ("chameleon", "sgc"), ("chameleon", "mixhop")]
)
def test_published_figures_come_out(dataset, backbone, tmp_path):
    root = os.environ.get("GNN_REPAIR_DATA")
    if not root or missing_files(DATASETS[dataset], Path(root)):
        pytest.skip(f"the raw files of {dataset} are not below GNN_REPAIR_DATA")
    if dataset != "cora" and not os.environ.get("GNN_REPAIR_LONG"):
        pytest.skip("trains for half a minute; GNN_REPAIR_LONG=1 runs it")
    outcome = run_study(
        [dataset], [backbone], store=tmp_path, methods=["oracle"], device="cpu", root=root
    )
    assert outcome.stored == 10
    tables = make_tables(Store(tmp_path).records(PAPER.digest))
    found = {
        fact["sheet"]: fact
        for fact in facts(tables)
        if (fact["row"], fact["column"]) == (backbone, dataset)
    }
    for sheet, tolerance in TOLERANCES.items():
        assert abs(found[sheet]["difference"]) < tolerance, found[sheet]
    support = published()["tables"]["support"]["cells"][backbone][dataset]
    assert found["Active support"]["value"] == pytest.approx(support, abs=0.05)
