"""What recipients are called, and what a report says about what it cannot draw."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gnn_repair.errors import InputError
from gnn_repair.exposure.pieces import NodeNames
from gnn_repair.reporting import gather, report, write_figures
from tests.helpers.report.report_worlds import make_exposure


def typed_exposure():
    exposure, y = make_exposure()
    return replace(exposure, names=NodeNames("field/of study", (("field/of study", 40),))), y


def test_figures_are_named_after_them(tmp_path):
    exposure, y = typed_exposure()
    evidence = gather(exposure, y)
    assert evidence.noun == "field/of study"
    written = write_figures(evidence, tmp_path, formats=["svg"])
    assert f"field-of-study-{evidence.nodes[0]}.svg" in {path.name for path in written}
    with pytest.raises(InputError, match="field/of study 99 is not among the report's field/of st"):
        write_figures(evidence, tmp_path, node=99)


@pytest.mark.parametrize("bad", [float("nan"), float("-inf")])
def test_answers_that_are_no_numbers_are_refused(tmp_path, bad):
    exposure, y = make_exposure()
    logits = torch.rand(40, 4)
    logits[3, 1] = bad
    with pytest.raises(InputError, match=f"logits of 'mine' at node 3 hold {bad}; give finite"):
        report(exposure, y, tmp_path / "r.html", repairs={"mine": logits})
    assert not (tmp_path / "r.html").exists()


def test_numbers_beyond_the_page_are_refused(tmp_path):
    """float32 would turn them into infinity, and every picture into nothing."""
    exposure, y = make_exposure()
    for scale, fine in ((1e30, True), (1e300, False)):
        grown = replace(
            exposure,
            contributions=scale * exposure.contributions,
            fixed_logits=scale * exposure.fixed_logits,
            frozen_logits=scale * exposure.frozen_logits,
        )
        if fine:
            assert report(grown, y, tmp_path / "r.html").is_file()
        else:
            with pytest.raises(InputError, match=r"frozen logits reach \d\.\de\+30\d, and a page"):
                report(grown, y, tmp_path / "r.html")


def test_labels_are_no_classes(tmp_path):
    exposure, _ = make_exposure()
    several = replace(exposure, outputs="labels")
    with pytest.raises(InputError, match=r"outputs are labels.*use solve"):
        report(several, torch.ones(40, 4, dtype=torch.bool), tmp_path / "r.html")
