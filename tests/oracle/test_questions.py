"""Laws that every question of the oracle keeps, stated once and asked of each question.

Members that share nothing, two groups, a recipient without terms, one without the second group,
zero coefficients, senders of several messages: what the questions say of them is followed through
changes that have to change nothing, or a name alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

import gnn_repair as gr
from gnn_repair.exposure import Group
from gnn_repair.oracle import class_reach, relaxed_margins, stable_evidence
from gnn_repair.oracle.questions.joint import jointly
from gnn_repair.oracle.questions.ranges import value_range
from gnn_repair.oracle.questions.stable import without_each_source
from tests.helpers.oracle.oracle_cases import behind_identity
from tests.helpers.repair.contract_exposures import (
    by_hand,
    renumbered_nodes,
    reordered_classes,
    reordered_members,
    shuffled_terms,
)

Rows = dict[tuple[int, ...], Any]
"""By member, node and output: numbers, words, and numbers by sender."""


def by_sender(sources: Any, numbers: Any) -> dict[int, float]:
    """Sums of what one sender's terms have; what is next to nothing is left out."""
    found: dict[int, float] = defaultdict(float)
    for source, number in zip(np.asarray(sources).tolist(), np.asarray(numbers), strict=True):
        found[source] += float(number)
    return {source: number for source, number in found.items() if abs(number) > 1e-7}


def witnesses(solution: Any) -> Rows:
    return {
        (one.member, one.node, one.target, *([one.wanted] * (one.wanted is not None))): (
            one.margin,
            one.bound,
            one.verdict,
            by_sender(one.sources, one.coefficients),
        )
        for one in solution
    }


def solved(method: str = "simplex") -> Callable[..., Rows]:
    return lambda e, y, nodes, threads: witnesses(
        gr.solve(e, "all", nodes, method=method, threads=threads)
    )


def classes(e, y, nodes, threads):
    found = class_reach(e, nodes, threads=threads)
    each = zip(found.member.tolist(), e_names(e)[found.node].tolist(), strict=True)
    return {
        (s, v, c): (found.margin[i, c], str(found.verdict[i, c]), int(found.count[i]))
        for i, (s, v) in enumerate(each)
        for c in range(e.num_classes)
    }


def e_names(e):
    return np.arange(e.num_nodes) if e.n_id is None else e.n_id.numpy()


def nearest(e, y, nodes, threads):
    return {
        (one.member, one.node, one.target): (
            one.status, one.moved, one.bound, one.mass, by_sender(one.sources, one.change),
            {source: after - before for source, before, after in one.gains},
        )
        for one in gr.nearest_reweighting(e, y, nodes, margin=0.05, threads=threads)
    }  # fmt: skip


def changes(e, y, nodes, threads):
    found = gr.reach(e, y, nodes, threads=threads).changes
    each = zip(found.member.tolist(), e_names(e)[found.node].tolist(), strict=True)
    return {
        (s, v, c): (found.share[i, c], found.bound[i, c], *(float(p[i]) for p in found.places))
        for i, (s, v) in enumerate(each)
        for c in range(e.num_classes)
    }


def stable(e, y, nodes, threads):
    found = stable_evidence(e, y, nodes, epsilon=0.05, threads=threads)
    return {
        (one.member, one.node, one.target): (
            one.margin, by_sender(one.sources, one.low), by_sender(one.sources, one.high),
            by_sender(one.sources, one.indispensable), by_sender(one.sources, one.interchangeable),
        )
        for one in found
    }  # fmt: skip


def relaxed(between: bool) -> Callable[..., Rows]:
    def ask(e, y, nodes, threads):
        slack = (0.0, 0.3, 1.0)
        found = relaxed_margins(
            e, "all", nodes, slack=slack, between_groups=between, threads=threads
        )
        places = zip(found.member, e_names(e)[found.node], found.target, strict=True)
        return {
            tuple(map(int, key)): (*found.margin[:, i], *found.bound[:, i], *found.verdict[:, i])
            for i, key in enumerate(places)
        }

    return ask


def needed(e, y, nodes, threads):
    found = without_each_source(gr.solve(e, "all", nodes, threads=threads), e)
    rows: Rows = defaultdict(dict)
    for member, node, target, source, margin, verdict in found.itertuples(index=False):
        rows[member, node, target][source] = margin
        assert verdict == ("can" if margin > 1e-7 else "cannot")
    return {key: (sources,) for key, sources in rows.items()}


def ranked(e, y, nodes, threads):
    """The ranking counts what the single answers say, whoever the members are."""
    solution = gr.solve(e, "all", nodes, threads=threads)
    frame = gr.source_ranking(solution, e, indispensable=True)
    columns = ["witnesses", "mass", "gained", "alone", "needed", "unsure"]
    return {(): tuple(dict(zip(frame["source"], frame[name], strict=True)) for name in columns)}


def diagnosed(outputs: str) -> Callable[..., Rows]:
    """Classes; labels beside their other side; values beside those of the other nodes."""

    def ask(e, y, nodes, threads):
        e = replace(e, outputs=outputs)
        if outputs != "classes":
            numbers = torch.stack([(y * (k + 2)) % 5 - 1.5 for k in range(e.num_classes)], 1)
            numbers[y == 2] = torch.nan
            y = numbers if outputs == "values" else torch.where(numbers.isnan(), -1, numbers > 0)
        found, rows = gr.diagnose(e, y=y, nodes=nodes), {}
        if "member" not in (frame := found.to_frame()):
            frame.insert(0, "member", 0)
        words = [n for n in frame if "messages" in n or n in ("smallest_change", "scope")]
        frame = frame.drop(columns=words)
        for row in frame.to_dict("records"):
            member, node = row.pop("member"), row.pop("node")
            said, key = found.explain(node, member), next(iter(row))
            said = said.replace(" (sampled subgraph)", "")
            if outputs == "classes":
                key, predicted = "true", row.pop("predicted")
                assert said.startswith(f"node {node}: predicted {predicted}")
                row["right"] = row["true"] == predicted
            assert f"node {node}" in said
            output = row.pop(key)
            rows[member, node, output] = tuple(row.values())
        return rows

    return ask


def labels(e, y, nodes, threads):
    e = replace(e, outputs="labels")
    return witnesses(gr.solve(e, "flip", nodes, threshold=0.2, threads=threads))


def ranges(e, y, nodes, threads):
    found = value_range(replace(e, outputs="values"), nodes, threads=threads)
    ends, numbers = (found.lower, found.upper), (found.frozen, found.low, found.high, found.width)
    return {
        (low.member, low.node, low.target): (
            *(number[i] for number in numbers),
            *(by_sender(end.sources, end.coefficients) for end in (low, high)),
        )
        for i, (low, high) in enumerate(zip(*ends, strict=True))
    }


def together(e, y, nodes, threads):
    truths = torch.stack([y % 2 == k % 2 for k in range(e.num_classes)], 1).double()
    truths[:, 1], truths[y == 2] = torch.nan, torch.nan  # of some nodes nothing is known
    whole = jointly(replace(e, outputs="labels"), truths)
    zeros = torch.zeros(e.num_nodes, dtype=torch.long)
    return {(s, v): row[:3] for (s, v, _), row in witnesses(gr.solve(whole, zeros, nodes)).items()}


QUESTIONS: dict[str, Callable[..., Rows]] = {
    "solve": solved(),
    "solve by highs": solved("highs"),
    "class reach": classes,
    "nearest": nearest,
    "changes": changes,
    "stable": stable,
    "relaxed": relaxed(False),
    "relaxed between groups": relaxed(True),
    "needed": needed,
    "ranking": ranked,
    "diagnosis": diagnosed("classes"),
    "diagnosis of labels": diagnosed("labels"),
    "diagnosis of values": diagnosed("values"),
    "labels": labels,
    "ranges": ranges,
    "jointly": together,
}
CHOSEN = torch.tensor([7, 2, 3, 19, 4, 11, 23])
"""Without terms 3, without the second group 4."""


@cache
def exposed():
    exposure = by_hand()
    assert exposure.segments.diff().view(-1, 2)[3:5].tolist()[0] == [0, 0]
    return exposure, (torch.arange(exposure.num_nodes) * 7) % exposure.num_classes


@cache
def answers(question: str) -> Rows:
    exposure, y = exposed()
    return QUESTIONS[question](exposure, y, CHOSEN, 1)


def agree(found: Any, expected: Any, close: float, at: Any = "") -> None:
    """Numbers are close, words, names and who is there are the same."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), at
        for key in expected:
            agree(found[key], expected[key], close, (at, key))
    elif isinstance(expected, tuple):
        assert len(found) == len(expected)
        for place, (a, b) in enumerate(zip(found, expected, strict=True)):
            agree(a, b, close, (at, place))
    elif isinstance(expected, float | np.floating):
        assert found == pytest.approx(expected, rel=close, abs=close, nan_ok=True), at
    else:
        assert found == expected, at


def renamed(rows: Rows, member=None, node=None, target=None) -> Rows:
    """The same under other names; senders are nodes."""
    own = node or (lambda v: v)

    def value(one: Any) -> Any:
        return {own(s): x for s, x in one.items()} if isinstance(one, dict) else one

    called = (member or (lambda s: s), own, target or (lambda c: c))
    return {
        (*(f(k) for f, k in zip(called, key, strict=False)), *key[3:]): tuple(map(value, row))
        for key, row in rows.items()
    }


SUMS = ("ranking",)
"""Questions whose rows are over all members."""
BESIDE = "diagnosis of values"
"""Its chance is about the nodes asked about."""
AGAINST_A_NUMBER = ("diagnosis of labels", "diagnosis of values", "labels", "ranges", "jointly")
"""Questions about one output beside a number, where the others compare classes."""
BEHIND_A_HEAD = (
    "solve", "class reach", "nearest", "relaxed", "relaxed between groups", "labels", "ranges",
)  # fmt: skip
BY_TERM = ("stable", "ranking")
"""Questions that count term by term."""
BY_COLUMN = ("jointly", "diagnosis of labels", "diagnosis of values")
"""Questions whose truths here are made by the number of the output."""
every = pytest.mark.parametrize("question", QUESTIONS)


@every
def test_members_alone_answer_as_together(question):
    exposure, y = exposed()
    found: Rows = {}
    parts = [QUESTIONS[question](exposure.member(s), y, CHOSEN, 1) for s in range(3)]
    if question in SUMS:
        for columns in zip(*(part[()] for part in parts), strict=True):
            whole: dict[int, float] = defaultdict(float)
            for column in columns:
                for source, number in column.items():
                    whole[source] += number
            found[()] = (*found.get((), ()), dict(whole))
    else:
        for s, part in enumerate(parts):
            found |= renamed(part, member=lambda _, s=s: s)
    agree(found, answers(question), 1e-9)


@every
def test_members_in_another_order(question):
    exposure, y = exposed()
    turned = reordered_members(exposure, [2, 0, 1])
    found = QUESTIONS[question](turned, y, CHOSEN, 1)
    agree(renamed(found, member=[2, 0, 1].__getitem__), answers(question), 1e-9)


@pytest.mark.parametrize("question", [q for q in QUESTIONS if q not in (*SUMS, BESIDE)])
def test_a_mask_by_member_asks_each_member_about_its_own(question):
    exposure, y = exposed()
    mask = torch.zeros(exposure.num_nodes, 3, dtype=torch.bool)
    own = [CHOSEN[:3], CHOSEN[2:5], CHOSEN[5:]]
    for s, nodes in enumerate(own):
        mask[nodes, s] = True
    found = QUESTIONS[question](exposure, y, mask, 1)
    kept = {(s, int(v)) for s, nodes in enumerate(own) for v in nodes}
    expected = {key: row for key, row in answers(question).items() if key[:2] in kept}
    agree(found, expected, 1e-9)


@every
@pytest.mark.parametrize("restrict", [False, True])
def test_some_nodes_in_any_order_and_any_number_of_threads(question, restrict):
    exposure, y = exposed()
    part = exposure.restrict(CHOSEN.flip(0)) if restrict else exposure
    found = QUESTIONS[question](part, y, None if restrict else CHOSEN.flip(0), 3)
    agree(found, answers(question), 1e-9)


@every
def test_nodes_of_a_sample_are_called_as_in_the_graph(question):
    exposure, y = exposed()
    names = torch.randperm(1000, generator=torch.Generator().manual_seed(1))[: exposure.num_nodes]
    sample = replace(exposure, n_id=names)
    (one,) = gr.solve(sample, y, CHOSEN, threads=1).for_node(int(names[7]), member=1)
    assert (one.node, one.member, one.target) == (names[7], 1, y[7])
    found = QUESTIONS[question](sample, y, CHOSEN, 1)
    agree(found, renamed(answers(question), node=names.tolist().__getitem__), 0.0)


@every
def test_nodes_under_other_numbers(question):
    exposure, y = exposed()
    moved, old = renumbered_nodes(exposure)
    found = QUESTIONS[question](moved, y[old], old.argsort()[CHOSEN], 1)
    agree(renamed(found, node=old.tolist().__getitem__), answers(question), 1e-7)


@every
def test_terms_and_table_rows_in_another_order(question):
    exposure, y = exposed()
    agree(QUESTIONS[question](shuffled_terms(exposure)[0], y, CHOSEN, 1), answers(question), 1e-7)


@pytest.mark.parametrize("question", [q for q in QUESTIONS if q not in BY_COLUMN])
def test_classes_under_other_numbers(question):
    exposure, y = exposed()
    order = torch.tensor([2, 0, 3, 1])
    found = QUESTIONS[question](reordered_classes(exposure, order), order[y], CHOSEN, 1)
    back = order.argsort().tolist()
    agree(renamed(found, target=back.__getitem__), answers(question), 1e-7)


@every
def test_groups_in_another_order_and_one_without_terms(question):
    exposure, y = exposed()
    ends, order = exposure.segments, []
    lengths = ends.diff().view(-1, 2)
    for node in range(len(lengths)):
        for g in (1, 0):
            order += range(int(ends[2 * node + g]), int(ends[2 * node + g + 1]))
    wide = torch.stack([lengths[:, 1], torch.zeros_like(lengths[:, 0]), lengths[:, 0]], 1)
    turned = replace(
        exposure,
        groups=tuple(Group(f"group {g}", "turned", "by hand") for g in range(3)),
        segments=torch.cat([ends[:1], wide.view(-1).cumsum(0)]),
        rows=exposure.rows[order],
        coefficients=exposure.coefficients[:, order],
    )
    agree(QUESTIONS[question](turned, y, CHOSEN, 1), answers(question), 1e-7)


@every
def test_masses_that_shrink_while_messages_grow_are_the_same_model(question):
    """Each member's by a power of two of its own, so that nothing rounds; masses and what is a
    share of them follow."""
    exposure, y = exposed()
    size = torch.tensor([1.0, 2.0**40, 2.0**10], dtype=torch.float64)
    same = replace(
        exposure,
        coefficients=exposure.coefficients / size[:, None],
        contributions=exposure.contributions * size[:, None, None],
    )
    found, expected = QUESTIONS[question](same, y, CHOSEN, 1), answers(question)
    assert found.keys() == expected.keys()
    for key, row in expected.items():
        if question == "nearest":  # its masses are in words of the exposure
            status, *masses, _, gains = row
            said, *less, _, shares = found[key]
            assert said == status
            grown = tuple(float(size[key[0]]) * x for x in less)
            agree((grown, shares), (tuple(masses), gains), 1e-6, key)
            continue
        for ours, theirs in zip(found[key], row, strict=True):
            if not isinstance(theirs, dict):
                agree(ours, theirs, 1e-6, key)
            elif question == "needed" or (question == "ranking" and theirs is not row[1]):
                assert ours.keys() == theirs.keys()


@pytest.mark.parametrize("question", [q for q in QUESTIONS if q not in BY_TERM])
def test_a_message_that_is_sent_twice_with_half_the_weight(question):
    exposure, y = exposed()
    lengths, last = exposure.segments.diff(), exposure.segments[1:] - 1
    order = torch.cat([torch.arange(exposure.num_terms), last[lengths > 0]]).sort().values
    alpha = exposure.coefficients[:, order]
    twice = torch.isin(order, last[lengths > 0])
    split = replace(
        exposure,
        segments=torch.cat([exposure.segments[:1], (lengths + (lengths > 0)).cumsum(0)]),
        rows=exposure.rows[order],
        coefficients=torch.where(twice, alpha / 2, alpha),
    )
    agree(QUESTIONS[question](split, y, CHOSEN, 1), answers(question), 1e-6)


@pytest.mark.parametrize("question", [q for q in QUESTIONS if q not in AGAINST_A_NUMBER])
def test_a_shift_of_all_logits_of_a_node_wins_nothing(question):
    exposure, y = exposed()
    shift = torch.arange(exposure.num_nodes).double()[:, None] / 8
    moved = replace(
        exposure,
        fixed_logits=exposure.fixed_logits + shift,
        frozen_logits=exposure.frozen_logits + shift,
    )
    agree(QUESTIONS[question](moved, y, CHOSEN, 1), answers(question), 1e-7)


@pytest.mark.parametrize("question", BEHIND_A_HEAD)
def test_behind_a_head_that_does_nothing(question):
    exposure, y = exposed()
    plain = exposure.member(1)
    headed = behind_identity(plain)

    def without_senders(rows: Rows) -> Rows:
        return {
            key: tuple(value for value in row if not isinstance(value, dict))
            for key, row in rows.items()
        }

    found, expected = (QUESTIONS[question](e, y, CHOSEN, 1) for e in (headed, plain))
    if question == "nearest":  # an upper value that was found and a lower one that is proved
        for key, (status, moved, bound, mass, *_) in found.items():
            assert (status, mass) == (expected[key][0], pytest.approx(expected[key][3]))
            least = expected[key][1]
            if status == "moved":
                assert bound <= least * (1 + 1e-6) and least * (1 - 1e-6) <= moved <= 1.01 * least
        return
    agree(without_senders(found), without_senders(expected), 1e-4)


def test_both_methods_certify_the_same_answers():
    """Where there is nothing to reweight, too: the rival that wins is the one that is named."""
    exposure, _ = exposed()
    ours, theirs = (gr.solve(exposure, "all", method=m) for m in ("simplex", "highs"))
    assert ours.check(exposure).ok and theirs.check(exposure).ok
    np.testing.assert_allclose(theirs.margin, ours.margin, atol=1e-7)
    fixed = ours.status == 2
    assert fixed.sum() == 12 and (fixed == (theirs.status == 2)).all()
    np.testing.assert_array_equal(theirs.rival_weights[fixed], ours.rival_weights[fixed])
    logits = exposure.frozen_logits[:, 3].numpy()
    for one, weights in zip(
        ours[fixed.argmax() :], ours.rival_weights[fixed.argmax() :], strict=True
    ):
        if one.node == 3:
            rest = np.where(np.arange(4) == one.target, -np.inf, logits[one.member])
            assert weights.tolist() == (np.arange(4) == rest.argmax()).tolist()
            assert (
                one.margin
                == one.bound
                == pytest.approx(logits[one.member, one.target] - rest.max())
            )
