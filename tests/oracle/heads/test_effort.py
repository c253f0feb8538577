"""What words and numbers of effort stand for."""

from __future__ import annotations

import pytest

from gnn_repair.errors import InputError
from gnn_repair.oracle.heads.solve import MOST, EffortLimit, budget_of


def test_words_and_seconds():
    assert budget_of("fast") == EffortLimit(1, 0.1)
    assert budget_of("normal") == EffortLimit(1000, 0.5)  # a long tail ends after half a second
    assert budget_of("full") == EffortLimit(50_000, 60.0)
    assert budget_of(2) == EffortLimit(MOST, 2.0)


@pytest.mark.parametrize("effort", ["much", -1, True, None, float("nan")])
def test_anything_else_is_refused(effort):
    with pytest.raises(InputError, match="effort must be one of"):
        budget_of(effort)
