"""Records of one frozen model with other methods become one; others do not."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest

from gnn_repair.results.records import RunRecord, parse_record, unite


def scores(test):
    return {"train": 0.9, "val": 0.8, "test": test}


@pytest.fixture
def there():
    return RunRecord(
        protocol="p", dataset="cora", backbone="gcn", split=0, graph={"nodes": 5},
        frozen=scores(0.7), stages={"frozen": "f", "a": "1"}, methods={"a": scores(0.75)},
        seconds={"frozen": 1.0, "a": 2.0, "total": 3.0}, stack=[0],
        environment={"revision": "r1", "device": "cpu"},
    )  # fmt: skip


@pytest.fixture
def other(there):
    return replace(
        copy.deepcopy(there),
        methods={"a": scores(0.75), "b": scores(0.6)},
        stages={"frozen": "f", "a": "1", "b": "2"},
        seconds={"frozen": 9.0, "a": 9.0, "b": 4.0, "total": 22.0},
        oracle={"test": {"error_reach": 0.5}},
        environment={"revision": "r2", "device": "cpu"},
    )


def test_methods_and_oracle_are_added(there, other):
    whole = unite(there, other)
    assert whole.methods == {"a": scores(0.75), "b": scores(0.6)}
    assert whole.stages == {"frozen": "f", "a": "1", "b": "2"}
    assert whole.oracle == other.oracle
    assert whole.seconds == {"frozen": 1.0, "a": 2.0, "b": 4.0, "total": 7.0}
    assert whole.environment == {
        "revision": "r1", "device": "cpu", "revision of b": "r2", "revision of oracle": "r2",
    }  # fmt: skip
    assert parse_record(whole.as_json()) == whole
    assert unite(whole, other) == whole and unite(whole, there) == whole


@pytest.mark.parametrize(
    "differ",
    [
        lambda r: r.frozen.update(test=0.71),
        lambda r: r.graph.update(nodes=6),
        lambda r: r.stack.append(1),
        lambda r: r.methods["a"].update(test=0.1),
        lambda r: r.stages.update(a="7"),
    ],
)
def test_what_disagrees_is_not_united(there, other, differ):
    differ(other)
    assert unite(there, other) is None


def test_two_oracles_must_agree(there, other):
    there = replace(there, oracle={"test": {"error_reach": 0.6}})
    assert unite(there, other) is None
