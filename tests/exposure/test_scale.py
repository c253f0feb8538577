"""The benchmark's graph is what it says, and its exposure is exact."""

from __future__ import annotations

import torch

from gnn_repair.bench.scale import bench_scale, generated_graph


def test_generated_graph_has_distinct_sources_and_a_self_loop() -> None:
    data = generated_graph(nodes=50, entries=350, features=3)
    dense = data.adj_t.to_dense()
    assert bool((dense == 1).sum(1).eq(7).all())
    assert bool((dense.diagonal() == 1).all())


def test_a_small_run() -> None:
    (row,) = bench_scale(200, 2000, features=4, hidden=8, classes=3)
    assert (row.nodes, row.terms, row.threads) == (200, 2000, torch.get_num_threads())
    assert row.residual <= 1e-5 and row.peak_gib > 0


def test_large_messages_are_certified_by_their_aggregate(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr("gnn_repair.exposure.certification.LARGEST_MESSAGES", 10)
    (row,) = bench_scale(200, 2000, features=4, hidden=8, classes=3)
    assert row.residual <= 1e-5
