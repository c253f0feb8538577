"""Sources that a class cannot do without: against HiGHS on LPs that were cut by hand."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

import gnn_repair as gr
from gnn_repair.errors import InputError
from gnn_repair.exposure import Exposure
from gnn_repair.oracle.fallback import Highs
from gnn_repair.oracle.problems import Tables, instance
from gnn_repair.oracle.questions.stable import without_each_source
from tests.helpers.hand_made import hand_made


def exposure_of(lengths, sources, table, alpha, nodes) -> Exposure:
    """Terms with rows of their own; ``sources`` [T]."""
    lengths = torch.tensor(lengths)
    segments = torch.cat([torch.zeros(1, dtype=torch.long), lengths.reshape(-1).cumsum(0)])
    return hand_made(
        segments,
        torch.arange(len(alpha)),
        alpha.unsqueeze(0),
        table.unsqueeze(0),
        torch.zeros(1, nodes, table.shape[1], dtype=torch.float64),
        lengths.shape[1],
        sources=torch.tensor(sources, dtype=torch.int32),
    )


def planted(mass: float = 1.0) -> Exposure:
    """Node 0: class 0 speaks through source 1 alone. Node 1: through 0 or 2. Node 2: one term only.
    Node 3: source 0 speaks for class 0 through two terms."""
    table = torch.tensor(
        [[2.0, 0], [0, 1], [2, 0], [2.5, 0], [3, 0], [1.0, 0], [4, 0], [0, 1]]
    ).double()
    alpha = torch.full((8,), 0.5 * mass, dtype=torch.float64)
    return exposure_of([[2], [2], [1], [3]], [1, 2, 0, 2, 3, 0, 0, 1], table / mass, alpha, 4)


@pytest.mark.parametrize("mass", [1.0, 1e-9])
def test_planted_sources_are_found(mass: float) -> None:
    exposure = planted(mass)
    solution = gr.solve(exposure, torch.zeros(4, dtype=torch.long))
    found = without_each_source(solution, exposure)
    told = {(r.node, r.source): (r.verdict, r.margin) for r in found.itertuples()}
    assert told[0, 1][0] == "cannot" and told[0, 1][1] == pytest.approx(-1.0)
    assert told[1, 2][0] == "can" and told[1, 2][1] == pytest.approx(2.0)
    assert told[2, 3] == ("cannot", -np.inf)  # nobody else can carry the mass
    assert told[3, 0][0] == "cannot" and told[3, 0][1] == pytest.approx(-1.5)
    assert len(told) == 4
    ranked = gr.source_ranking(solution, exposure, indispensable=True)
    needed = dict(zip(ranked["source"], ranked["needed"], strict=True))
    assert needed == {0: 1, 1: 1, 2: 0, 3: 1} and ranked["unsure"].eq(0).all()


@pytest.mark.parametrize("groups", [1, 3])
def test_random_answers_are_those_of_another_solver(groups: int, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr("gnn_repair.oracle.questions.stable.QUESTIONS", 17)
    generator = torch.Generator().manual_seed(groups)
    lengths = torch.randint(0, 5, (30, groups), generator=generator)
    terms = int(lengths.sum())
    exposure = exposure_of(
        lengths.tolist(),
        torch.randint(30, (terms,), generator=generator).tolist(),
        torch.randn(terms, 4, generator=generator).double(),
        torch.rand(terms, generator=generator).double() + 0.1,
        30,
    )
    solution = gr.solve(exposure, "all")
    found = without_each_source(solution, exposure)
    assert {"can", "cannot"} <= set(found["verdict"]) and len(found) > 60
    tables, solver = Tables.of(exposure), Highs()
    for row in found.itertuples():
        problem = instance(tables, 0, row.node, getattr(row, "_3", row[3]))
        kept = tables.sources[tables.rows[problem.terms]] != row.source
        if len(np.unique(problem.group[kept])) < len(np.unique(problem.group)):
            assert row.margin == -np.inf and row.verdict == "cannot"
            continue
        answer = solver.solve(problem.part(kept))
        assert row.margin == pytest.approx(answer.margin, abs=1e-7)
        assert row.verdict == ("can" if answer.margin > 1e-7 else "cannot")


def test_views_are_written_as_csv(tmp_path) -> None:  # type: ignore[no-untyped-def]
    exposure, y = planted(), torch.tensor([0, 0, 0, 1])
    solution = gr.solve(exposure, y)
    ranked = gr.source_ranking(solution, exposure, indispensable=True, csv=tmp_path / "a" / "s.csv")
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "a" / "s.csv"), ranked)
    confusion = gr.confusion_by_reach(solution, exposure, y, csv=str(tmp_path / "c.csv"))
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "c.csv"), confusion)
    with pytest.raises(InputError):
        gr.source_ranking(solution, exposure, csv=tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "c.csv"]


def test_nothing_within_reach_gives_an_empty_ranking() -> None:
    exposure = planted()
    solution = gr.solve(exposure, torch.tensor([-1, -1, 1, -1]))
    assert not solution.reachable.any()
    assert without_each_source(solution, exposure).empty
    ranked = gr.source_ranking(solution, exposure, indispensable=True)
    assert ranked.empty and {"needed", "unsure"} <= set(ranked.columns)
