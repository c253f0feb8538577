"""The benchmark's graph is what it says, and its exposure is exact."""

from __future__ import annotations

import pytest
import torch

import gnn_repair as gr
from benchmarks.scale import MODELS, Net, bench_scale, generated_graph
from gnn_repair.errors import ExposureRefused


@pytest.mark.parametrize("model", MODELS)
def test_a_small_run(model: str) -> None:
    (row,) = bench_scale(
        (200,), models=[model], degree=10, features=4, hidden=8, classes=3, apart=False
    )
    assert (row["nodes"], row["terms"], row["targets"]) == (200, 2000, 10)
    assert (row["model"], row["threads"]) == (model, torch.get_num_threads())
    assert row["residual"] is None or row["residual"] <= 1e-5
    assert row["peak at the end (GiB)"] >= row["peak (GiB)"] > 0 and 0 < row["reach"] <= 1


def test_large_tables_are_compared_in_slices(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    torch.manual_seed(0)
    data = generated_graph(nodes=200, entries=2000, features=4)
    model = Net(4, 8, 3).eval()
    usual = gr.expose(model, data)
    monkeypatch.setattr("gnn_repair.exposure.pieces.NUMBERS", 50)
    large = gr.expose(model, data)
    assert large.residual is not None and large.residual <= 1e-5
    torch.testing.assert_close(large.logits(), usual.logits(), rtol=0, atol=1e-6)


def test_a_model_that_gives_nan_on_other_weights_is_refused(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    def spoilt(*given: object) -> torch.Tensor:
        return torch.full((200, 3), torch.nan)

    monkeypatch.setattr("gnn_repair.exposure.record.replay.replaced", spoilt)
    with pytest.raises(ExposureRefused, match="gives NaN or infinite logits"):
        gr.expose(Net(4, 8, 3).eval(), generated_graph(nodes=200, entries=2000, features=4))
