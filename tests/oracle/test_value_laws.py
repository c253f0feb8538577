"""Laws of exposures and solutions: cut, joined, sliced and saved, they say what they said."""

from __future__ import annotations

import tempfile
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gnn_repair.exposure import Exposure
from gnn_repair.oracle import Solution, solve
from tests.campaigns.lp_families import Numbers, exposure_of
from tests.helpers.oracle.oracle_cases import as_members


@st.composite
def exposures(draw):
    """Any number of groups, absent groups, integers among the numbers, so that there are ties."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    nodes, groups, classes = (
        draw(st.integers(1, 6)),
        draw(st.integers(1, 3)),
        draw(st.integers(2, 5)),
    )
    lengths = rng.integers(0, 4, (nodes, groups))
    lengths[0, 0] += not lengths.any()
    terms, whole = int(lengths.sum()), draw(st.booleans())

    def numbers(*shape):
        return rng.integers(-2, 3, shape).astype(float) if whole else rng.normal(size=shape)

    def one():
        alpha = rng.uniform(0.1, 1, terms)
        return exposure_of(
            Numbers(lengths, alpha, numbers(terms, classes), numbers(nodes, classes))
        )

    whole = as_members([one() for _ in range(draw(st.integers(1, 3)))])
    return replace(whole, outputs=draw(st.sampled_from(["classes", "labels", "values"])))


laws = settings(max_examples=25, deadline=None)


def answers(exposure, nodes=None):
    return solve(exposure, "all" if exposure.outputs == "classes" else "flip", nodes, threads=1)


def rows(solution, member=0, shift=0):
    """One tuple per question, with its support by sender and group."""
    for i in range(len(solution)):
        part = slice(solution.indptr[i], solution.indptr[i + 1])
        support = zip(
            solution.sources[part], solution.groups[part], solution.coefficients[part], strict=True
        )
        wanted = None if solution.wanted is None else solution.wanted[i]
        weights = None if solution.rival_weights is None else solution.rival_weights[i].tolist()
        yield (
            solution.member[i] + member, solution.node[i] + shift, solution.target[i], wanted,
            solution.margin[i], solution.bound[i], solution.status[i], solution.verdict[i], weights,
            [(s + shift, g, x) for s, g, x in support],
        )  # fmt: skip


def same(one, other):
    """Whether two values hold the same, field by field."""
    for field in fields(one):
        a, b = getattr(one, field.name), getattr(other, field.name)
        if isinstance(a, np.ndarray | torch.Tensor):
            assert a.dtype == b.dtype, field.name
            np.testing.assert_array_equal(a, b, field.name)
        else:
            assert a == b, field.name
    return True


@laws
@given(exposure=exposures(), seed=st.integers(0, 1000))
def test_some_recipients_have_the_answers_that_they_had(exposure, seed):
    rng = np.random.default_rng(seed)
    chosen = rng.permutation(exposure.num_nodes)[: rng.integers(1, exposure.num_nodes + 1)]
    part = exposure.restrict(chosen.tolist())
    assert part.recipients.tolist() == chosen.tolist()
    own = {row[:3]: row for row in rows(answers(exposure))}
    assert all(row == own[row[:3]] for row in rows(answers(part)))
    assert len(answers(part)) * exposure.num_nodes == len(own) * len(chosen)
    fewer = rng.permutation(chosen)[: max(1, len(chosen) // 2)].tolist()
    assert same(part.restrict(fewer), exposure.restrict(fewer))
    assert same(exposure.restrict(range(exposure.num_nodes)), exposure)
    torch.testing.assert_close(part.logits(), exposure.logits()[:, chosen])


@laws
@given(exposure=exposures(), seed=st.integers(0, 1000))
def test_parts_one_after_another_answer_one_after_another(exposure, seed):
    order = np.random.default_rng(seed).permutation(exposure.num_nodes).tolist()
    parts = [exposure, exposure.restrict(order[: 1 + len(order) // 2]), exposure]
    whole = Exposure.concatenate(parts)
    found = sorted(rows(answers(whole)), key=lambda row: row[:3])
    each = [rows(answers(p), shift=exposure.num_nodes * k) for k, p in enumerate(parts)]
    assert found == sorted((row for part in each for row in part), key=lambda row: row[:3])
    assert same(Exposure.concatenate([exposure]), exposure)


@laws
@given(exposure=exposures(), cut=st.slices(12), chosen=st.lists(st.integers(0, 10**6), max_size=8))
def test_slices_and_choices_of_a_solution(exposure, cut, chosen):
    solution = answers(exposure)
    count, every = len(solution), list(rows(solution))
    part = solution[cut]
    assert list(rows(part)) == every[cut] and [str(w) for w in part] == [
        str(w) for w in [solution[i] for i in range(count)][cut]
    ]
    places = np.array([k % count for k in chosen], np.int64)
    taken = solution.taken(places)
    assert list(rows(taken)) == [every[k] for k in places]
    turned = np.arange(len(places))[::-1]
    assert same(taken.taken(turned), solution.taken(places[turned]))
    middle = count // 2
    joined = Solution.concatenate([solution[:middle], solution[middle:]])
    assert list(rows(joined)) == every and same(replace(joined, skipped=solution.skipped), solution)
    if len(part):
        assert part.check(exposure).ok and taken[:0].check(exposure).ok


@laws
@given(exposure=exposures(), cut=st.slices(12))
def test_what_is_saved_is_what_is_loaded(exposure, cut):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "value.safetensors"
        exposure.save(path)
        loaded = Exposure.load(path)
        assert same(loaded, exposure) and list(rows(answers(loaded))) == list(
            rows(answers(exposure))
        )
        solution = answers(exposure)[cut]
        solution.save(path)
        kept = Solution.load(path)
        assert same(kept, solution) and list(rows(kept)) == list(rows(solution))
        assert str(kept) == str(solution) and kept.to_frame().equals(solution.to_frame())
        if len(solution):
            assert kept.check(loaded).ok
