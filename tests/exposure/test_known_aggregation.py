"""What was found on one graph is taken over to the next as it was found."""

from __future__ import annotations

from types import SimpleNamespace

from gnn_repair.exposure.known_aggregation import _KnownFinder


def test_the_rule_that_split_the_messages_then_splits_them_now():
    """Not the first one that would: of two rules that fit, the second had been certified."""
    finder = _KnownFinder.__new__(_KnownFinder)
    finder.known = SimpleNamespace(splits={"layer": 1})
    assert [finder._may_split("layer", number) for number in range(3)] == [False, True, False]
    assert not any(finder._may_split("another layer", number) for number in range(3))
