"""Every figure a user can read, recomputed from rows by code that shares nothing with ours.

Rows are planted: classes that can and cannot win, ties, answers that failed (NaN), answers whose
bound decides nothing, nodes without a label, members with masks of their own.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from statistics import fmean

import numpy as np
import pytest
import torch

from gnn_repair.oracle import (
    ClassReach,
    Reach,
    class_reach,
    confusion_by_reach,
    nearest_reweighting,
    reach,
    solve,
    source_ranking,
    summarise,
)
from gnn_repair.oracle.baseline import compare, load_baseline, save_baseline
from gnn_repair.oracle.metrics import Changes, least_changes, summarise_labels
from gnn_repair.oracle.problems import Tables, build_lp
from gnn_repair.oracle.questions import stable
from gnn_repair.oracle.questions.ranges import value_range
from gnn_repair.oracle.questions.relaxed import RelaxedMargins
from gnn_repair.oracle.questions.stable import without_each_source
from gnn_repair.results.protocol import OracleProtocol
from gnn_repair.study.measures import summarise_oracle
from tests.campaigns.lp_families import Numbers, exposure_of
from tests.helpers.oracle.oracle_cases import as_members
from tests.helpers.oracle.oracle_scipy import margin_by_scipy

NODES, CLASSES, EDGE = 30, 4, 1e-7
OPTIMAL, FALLBACK, FAILED, UNCERTIFIED = 0, 1, 3, 4
nan = float("nan")


def exposed(seed, outputs="classes", members=2):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 4, (NODES, 1))
    terms = int(lengths.sum())

    def one():
        alpha, table = rng.uniform(0.1, 1, terms), rng.normal(size=(terms, CLASSES))
        return exposure_of(Numbers(lengths, alpha, table, rng.normal(size=(NODES, CLASSES))))

    return replace(as_members([one() for _ in range(members)]), outputs=outputs)


def planted(solution, seed):
    """Other margins, bounds and statuses: every kind of answer that there is."""
    rng, count = np.random.default_rng(seed), len(solution)
    kind = rng.integers(0, 9, count)
    # The last: the model's own precision may win by more than its head's bound allows.
    margin = np.choose(kind, [1.5, -1.5, 0.0, EDGE, nan, -1.0, -1.0, 2.0, 1.0])
    bound = np.choose(kind, [1.5, -1.5, 0.0, EDGE, nan, 1.0, -0.5, 3.0, 0.8])
    open_ = [UNCERTIFIED] * 4
    codes = [OPTIMAL, FALLBACK, OPTIMAL, OPTIMAL, FAILED, *open_]
    return replace(solution, margin=margin, bound=bound, status=np.choose(kind, codes).astype("i1"))


def verdict(solution, i):
    margin, bound, status = solution.margin[i], solution.bound[i], solution.status[i]
    if status == FAILED or margin != margin:
        return "undecided"
    if margin > EDGE:
        return "can"
    return "cannot" if status != UNCERTIFIED or bound <= EDGE else "undecided"


def wilson(hits, possible, total, z=1.959963984540054):
    def end(share, sign):
        middle = share + z * z / (2 * total)
        root = z * (share * (1 - share) / total + z * z / (4 * total * total)) ** 0.5
        return (middle + sign * root) / (1 + z * z / total)

    return max(0, end(hits / total, -1)), min(1, end(possible / total, 1))


def mean(values):
    known = [v for v in values if v == v]
    return fmean(known) if known else nan


@pytest.fixture(params=[1, 2, 3])
def asked(request):
    """An exposure, a planted solution of all classes of labelled nodes, and y."""
    exposure, rng = exposed(request.param), np.random.default_rng(request.param)
    y = torch.from_numpy(rng.integers(-1, CLASSES, NODES))
    mask = torch.from_numpy(rng.random((NODES, 2)) < 0.8) & (y >= 0)[:, None]
    return exposure, planted(solve(exposure, "all", mask), request.param), y


def rows_of(exposure, solution, y):
    """By member and node: the verdicts of all classes."""
    found = defaultdict(dict)
    for i in range(len(solution)):
        found[int(solution.member[i]), int(solution.node[i])][int(solution.target[i])] = i
    for (s, v), places in found.items():
        said = exposure.frozen_logits[s, v].tolist()
        words = [verdict(solution, places[c]) for c in range(CLASSES)]
        yield s, v, int(y[v]), said.index(max(said)), words, places


def test_verdicts_of_every_kind_of_answer(asked):
    _, solution, _ = asked
    words = [verdict(solution, i) for i in range(len(solution))]
    assert set(words) == {"can", "cannot", "undecided"}
    assert solution.verdict.tolist() == words == solution.to_frame()["verdict"].tolist()
    assert solution.reachable.tolist() == [w == "can" for w in words]
    margins = solution.by_class(2, NODES)
    for i in range(len(solution)):
        where = solution.member[i], solution.recipient[i], solution.target[i]
        assert margins[where] == pytest.approx(solution.margin[i], nan_ok=True)
    assert np.isfinite(margins).sum() == np.isfinite(solution.margin).sum()
    for limit in (-1.2, -0.7, 0.5, 1.7, 2.5):
        known = solution.status != FAILED
        wins, exact = solution.margin > limit, solution.status != UNCERTIFIED
        said = np.where(
            wins, "can", np.where(exact | (solution.bound <= limit), "cannot", "undecided")
        )
        assert solution.verdict_at(limit).tolist() == np.where(known, said, "undecided").tolist()
        assert (solution.decided_at(limit) == (solution.verdict_at(limit) != "undecided")).all()
    assert solution.excluded.tolist() == [w == "cannot" for w in words]
    assert solution.decided.tolist() == [w != "undecided" for w in words]
    counts = Counter(words)
    said, used = str(solution), mean(solution.support[solution.reachable].tolist())
    assert f"{counts['can']} can, {counts['cannot']} cannot, " in said
    assert f"{counts['undecided']} undecided" in said and f"{used:.2f} messages used" in said
    assert f"largest gap {np.nanmax(solution.bound - solution.margin):.1e}" in said
    # A number that is none certifies nothing, whatever its status says.
    broken = replace(solution, margin=np.full(len(solution), nan), status=0 * solution.status)
    assert set(broken.verdict) == {"undecided"} and not broken.excluded.any()


def test_reach_chance_and_excess(asked):
    exposure, solution, y = asked
    found = summarise(exposure, solution, y)
    rows = list(rows_of(exposure, solution, y))
    frame = found.to_frame()
    figures = defaultdict(list)
    for s in range(2):
        own = [(w[t], t != p, solution.support[at[t]]) for m, _, t, p, w, at in rows if m == s]
        for name, kept in (("true_class", own), ("error", [row for row in own if row[1]])):
            hits = sum(word == "can" for word, *_ in kept)
            may = hits + sum(word == "undecided" for word, *_ in kept)
            rate = getattr(found.members[s], name)
            assert (rate.hits, rate.total, rate.undecided) == (hits, len(kept), may - hits)
            assert rate.interval == pytest.approx(wilson(hits, may, len(kept)))
            shown = frame.iloc[s]
            assert shown[f"{name}_reach"] == hits / len(kept)
            assert shown[f"{name}_possible"] == may / len(kept)
            assert (shown[f"{name}_low"], shown[f"{name}_high"]) == pytest.approx(rate.interval)
            figures[name].append(hits / len(kept))
        active = [size for word, _, size in own if word == "can"]
        figures["support"].append(mean(active))
        assert frame["support"][s] == pytest.approx(mean(active), nan_ok=True)
        assert frame["undecided"][s] == sum(word == "undecided" for word, *_ in own)
        low, high, excess = [], [], []
        for m, _, t, p, words, _ in rows:
            if m == s and t != p:
                rest = [words[c] for c in range(CLASSES) if c not in (t, p)]
                low.append(rest.count("can") / len(rest))
                high.append(1 - rest.count("cannot") / len(rest))
                excess.append(((words[t] == "can") - high[-1], (words[t] != "cannot") - low[-1]))
        assert (frame["chance"][s], frame["chance_possible"][s]) == pytest.approx(
            (fmean(low), fmean(high))
        )
        ends = [fmean(e) for e in zip(*excess, strict=True)]
        assert (frame["excess"][s], frame["excess_possible"][s]) == pytest.approx(ends)
        figures["chance"].append((fmean(low), fmean(high)))
        figures["excess"].append(ends)
    for name in ("true_class", "error", "support"):
        assert found.mean(name) == getattr(found, name) == pytest.approx(mean(figures[name]))
    for name in ("chance", "excess"):
        ends = getattr(found, name).low, getattr(found, name).high
        assert ends == pytest.approx([fmean(e) for e in zip(*figures[name], strict=True)])
    assert found.undecided == frame["undecided"].sum()


def test_chance_of_all_nodes_classes_and_ranks(asked):
    exposure, solution, y = asked
    found = summarise(exposure, solution, y)
    rows = list(rows_of(exposure, solution, y))
    every, count, places = defaultdict(list), defaultdict(list), defaultdict(list)
    for s, _, t, p, words, at in rows:
        rest = [c for c in range(CLASSES) if c not in (t, p)]
        low, high = [words[c] == "can" for c in rest], [words[c] != "cannot" for c in rest]
        every[s].append((fmean(low), fmean(high)))
        if t == p:
            continue
        count[s].append((words.count("can"), CLASSES - words.count("cannot")))
        least = [-np.inf if np.isnan(m) else m for m in solution.margin[list(at.values())]]
        bounds = solution.bound[list(at.values())]
        most = [np.inf if np.isnan(b) else max(b, m) for b, m in zip(bounds, least, strict=True)]

        places[s].append(place(least, most, t, rest))
    for name, by_member in (
        ("true_class_chance", every),
        ("classes_per_error", count),
        ("rank", places),
    ):
        means = [[fmean(x) for x in zip(*by_member[s], strict=True)] for s in (0, 1)]
        shown = getattr(found, name)
        assert (shown.low, shown.high) == pytest.approx(
            [fmean(x) for x in zip(*means, strict=True)]
        )


def test_what_is_printed_is_what_was_counted(asked):
    exposure, solution, y = asked
    found = summarise(exposure, solution, y)
    said, classes = str(found), f"of {CLASSES - 1} by γ ({CLASSES / 2:.1f} by chance)"
    for name in ("true_class", "error"):
        rates = [getattr(member, name) for member in found.members]
        hits, total, left = (
            sum(getattr(r, n) for r in rates) for n in ("hits", "total", "undecided")
        )
        counted = f"mean over 2 members ({hits} of {total} in all, {left} undecided)"
        assert f"{100 * getattr(found, name):.1f} %, {counted}" in said and left

    def between(figure, scale=100, sign="", unit=""):
        numbers = (figure.low, figure.high, *figure.interval)
        low, high, first, last = (f"{scale * x:{sign}.1f}" for x in numbers)
        return f"{low} to {high}{unit} [{first}, {last}]"

    for figure in (found.true_class_chance, found.chance):
        assert f"chance {between(figure, unit=' %')}" in said
    assert f"excess {between(found.excess, sign='+', unit=' points')}" in said
    assert f"{between(found.classes_per_error, 1)} of {CLASSES} can win" in said
    assert f"rank {between(found.rank, 1)} {classes}" in said
    assert f"{found.support:.2f} messages used" in said
    changes = least_changes(found, exposure)
    said = str(changes)
    for text, shares in zip(("needs {} of", "another class {};"), changes.shares(), strict=True):
        known = shares[np.isfinite(shares)]
        median = f"{100 * np.median(known):.0f} %" if len(known) else "–"
        assert text.format(median) in said
    assert f"{len(changes.true)} errors" in said and f"of {CLASSES - 1} by smallest" in said
    words = [row[4] for row in rows_of(exposure, solution, y)]
    shares = Counter(row.count("can") for row in words)
    told = ", ".join(f"{k}: {100 * shares[k] / len(words):.1f} %" for k in sorted(shares))
    left = sum(row.count("undecided") for row in words)
    assert f"{told}; {left} of {CLASSES * len(words)} undecided" in str(found.classes)


def drawn(rows, draws=6000):
    """The 2.5th percentile of the lower ends and the 97.5th of the upper ones, over plain draws of
    whole nodes with other random numbers; rows are [(member, node, low, high)]."""
    nodes, members = ({row[k] for row in rows} for k in (1, 0))
    picked = np.random.default_rng(99).integers(0, len(nodes), (draws, len(nodes)))
    times = np.stack([(picked == k).sum(1) for k in range(len(nodes))], 1)
    of, ends = dict(zip(sorted(nodes), times.T, strict=True)), []
    for k in (2, 3):
        parts = [[row for row in rows if row[0] == s] for s in members]
        with np.errstate(invalid="ignore"):
            each = [
                sum(of[r[1]] * r[k] for r in part) / sum(of[r[1]] for r in part) for part in parts
            ]
        ends.append(np.nanmean(each, axis=0))
    return np.percentile(ends[0], 2.5), np.percentile(ends[1], 97.5)


def test_intervals_of_members_of_different_sizes_are_those_of_drawn_nodes():
    """Member 0 has few errors and mostly wins, member 2 has many and mostly does not; a member that
    has none is in no mean. What nothing is known of widens the interval."""
    rng = np.random.default_rng(5)
    member = np.repeat([0, 1, 3], [6, 25, 90])
    node = np.concatenate([rng.permutation(100)[:n] for n in (6, 25, 90)])
    odds = np.array([0.9, 0.5, 0.1])[np.unique(member, return_inverse=True)[1]]
    decided = rng.random((len(member), CLASSES)) < 0.95
    can = (rng.random(decided.shape) < odds[:, None]) & decided
    margin = np.where(can, 1.0, -1.0) + rng.normal(size=can.shape) / 8
    bound = np.where(decided, margin, 2.0)
    classes = ClassReach(member, node, margin, bound, can, decided)
    true, predicted = np.zeros(len(member), int), np.ones(len(member), int)
    found = Reach(classes, true, predicted, None, 0, "", 4)
    own, low, high = defaultdict(list), can[:, 2:].mean(1), (can | ~decided)[:, 2:].mean(1)
    for i, key in enumerate(zip(member.tolist(), node.tolist(), strict=True)):
        own["chance"].append((*key, low[i], high[i]))
        may = can[i, 0] or not decided[i, 0]
        own["excess"].append((*key, can[i, 0] - high[i], may - low[i]))
        own["classes_per_error"].append((*key, can[i].sum(), (can | ~decided)[i].sum()))
        rest = (2, 3)
        best = 1 + sum(margin[i, c] > bound[i, 0] for c in rest)
        own["rank"].append((*key, best, 1 + sum(bound[i, c] > margin[i, 0] for c in rest)))
    for name, rows in own.items():
        figure, ends = getattr(found, name), drawn(rows)
        width = ends[1] - ends[0]
        assert figure.interval == pytest.approx(ends, abs=0.06 * width), name
        assert (figure.value, figure.possible) == pytest.approx((figure.low, figure.high))
        for k, shown in ((2, figure.low), (3, figure.high)):
            each = [fmean(r[k] for r in rows if r[0] == s) for s in (0, 1, 3)]
            assert shown == pytest.approx(fmean(each)), name
    assert found.true_class_chance.interval == found.chance.interval  # all of them are errors


def place(worst, best, own, rest):
    """The best and the worst place that numbers between these ends allow; ties share theirs."""

    def among(theirs, mine):
        ahead = [theirs[c] > mine + EDGE for c in rest]
        tied = [theirs[c] == mine or abs(theirs[c] - mine) <= EDGE for c in rest]
        return 1 + sum(ahead) + sum(tied) / 2

    return among(worst, best[own]), among(best, worst[own])


def test_places_by_smallest_change_with_ties_and_classes_that_cannot_win():
    rng, count = np.random.default_rng(3), 60
    inf = np.inf
    bound = rng.choice([0.1, 0.1, 0.4, inf, inf], (count, CLASSES))
    share = np.where(rng.random(bound.shape) < 0.3, rng.choice([0.4, 0.6, inf], bound.shape), bound)
    share = np.maximum(share, bound)
    true, predicted = rng.integers(0, 2, count), rng.integers(2, CLASSES, count)
    member, node = np.arange(count) % 3, np.arange(count)
    found = Changes(member, node, true, predicted, share, bound)
    told = []
    for i in range(count):
        rest = [c for c in range(CLASSES) if c not in (true[i], predicted[i])]
        told.append(place(-share[i], -bound[i], true[i], rest))
    np.testing.assert_array_equal(np.stack(found.places, 1), told)
    both = [[x[k] for i, x in enumerate(told) if member[i] == s] for s in range(3) for k in (0, 1)]
    ends = [fmean(map(fmean, both[k::2])) for k in (0, 1)]
    assert (found.rank.low, found.rank.high) == pytest.approx(ends)
    others = [
        share[i, c]
        for i in range(count)
        for c in range(CLASSES)
        if c not in (true[i], predicted[i])
    ]
    frame = found.to_frame()
    for row in frame.itertuples():
        own = fmean(share[i, true[i]] <= row.mass_moved for i in range(count))
        rest = fmean(x <= row.mass_moved for x in others)
        assert (row.true_class, row.chance) == pytest.approx((own, rest))
    alone = replace(found, complete=False)
    assert np.isnan(alone.places).all() and alone.to_frame()["chance"].isna().all()


def test_changes_of_planted_verdicts(asked):
    """What is undecided may win without any change; what is proved never to win cannot."""
    exposure, solution, y = asked
    reached = summarise(exposure, solution, y)
    found, alone = least_changes(reached, exposure), least_changes(reached, exposure, others=False)
    rows = [row for row in rows_of(exposure, solution, y) if row[2] != row[3]]
    rows.sort(key=lambda row: row[:2])
    assert [row[:4] for row in rows] == list(
        zip(found.member, found.node, found.true, found.predicted, strict=True)
    )
    for i, (s, v, t, p, words, _) in enumerate(rows):
        assert alone.share[i, t] == pytest.approx(found.share[i, t])
        for c, word in enumerate(words):
            share, bound = np.inf, np.inf if word == "cannot" else 0.0
            if c == p:
                share = bound = 0.0
            elif word == "can":
                target = torch.full((NODES,), c)
                (one,) = nearest_reweighting(exposure.member(s), target, [v], threads=1)
                if one.status == "moved":
                    share, bound = one.moved / one.mass, one.bound / one.mass
            assert found.share[i, c] == pytest.approx(share)
            assert found.bound[i, c] == pytest.approx(bound, abs=1e-7)
            assert ((i, c) in found.answers) == (word == "can" and c != p)


def test_a_range_beside_values_of_which_some_are_not_known():
    exposure = exposed(1, "values")
    found, rng = value_range(exposure), np.random.default_rng(1)
    y = torch.from_numpy(rng.normal(scale=2, size=(NODES, CLASSES)))
    y[rng.random(y.shape) < 0.3] = nan
    y[0] = torch.from_numpy(found.low[:CLASSES])  # an end is inside
    contains, distance = found.contains(y), found.distance(y)
    for i in range(len(found)):
        low, high, true = (
            found.low[i],
            found.high[i],
            float(y[found.lower.node[i], found.lower.target[i]]),
        )
        far = nan if true != true else low - true if true < low else max(true - high, 0.0)
        assert distance[i] == pytest.approx(far, nan_ok=True) and contains[i] == (far == 0)
        assert found.width[i] == high - low
    assert np.isnan(distance).any() and (distance > 0).any() and contains.any()
    assert "exact" in str(found) and f"{np.median(found.high - found.low):.4g}" in str(found)


def test_what_becomes_of_a_class_without_one_sender(monkeypatch):
    """Every sender of every witness, with several groups, against the LP without its terms."""
    monkeypatch.setattr(stable, "QUESTIONS", 50)  # a few at a time
    rng = np.random.default_rng(8)
    lengths = rng.integers(0, 4, (40, 3))
    terms = int(lengths.sum())
    numbers = Numbers(lengths, rng.uniform(0.1, 1, terms), rng.normal(size=(terms, CLASSES)),
                      rng.normal(size=(40, CLASSES)))  # fmt: skip
    exposure = exposure_of(numbers)
    exposure = replace(exposure, sources=torch.from_numpy(rng.integers(0, 5, terms)).int())
    solution = solve(exposure, "all")
    rows = without_each_source(solution, exposure)
    told = {row[1:4]: row[4] for row in rows.itertuples(index=False, name=None)}
    sources, alone = exposure.sources.numpy(), 0
    expected, tables = {}, Tables.from_exposure(exposure)
    for one in solution:
        for source in set(one.sources.tolist()) if one.verdict == "can" else ():
            problem = build_lp(tables, 0, one.node, one.target)
            left = sources[problem.terms] != source
            kept = np.bincount(problem.group, left, len(problem.mass))
            alone += (kept == 0).any() and left.any()
            expected[one.node, one.target, source] = (
                margin_by_scipy(problem.part(left)) if (kept > 0).all() else -np.inf
            )
    assert told.keys() == expected.keys() and alone > 10
    lost = Counter(source for (*_, source), margin in expected.items() if margin <= EDGE)
    ranked = source_ranking(solution, exposure, indispensable=True)
    assert dict(zip(ranked["source"], ranked["needed"], strict=True)) == {
        source: lost[source] for source in ranked["source"]
    }
    assert ranked["unsure"].eq(0).all() and (ranked["needed"] > 0).any()
    for key, margin in expected.items():
        assert told[key] == pytest.approx(margin, abs=1e-7), key


def test_reach_asks_labelled_nodes_only_and_says_how_many_it_skips(asked):
    exposure, _, y = asked
    found = reach(exposure, y)
    assert found.skipped == 2 * int((y < 0).sum()) and (found.true >= 0).all()
    assert len(found.true) == 2 * int((y >= 0).sum())
    every = class_reach(exposure)
    answers = solve(exposure, "all")
    assert every.count.tolist() == every.possible.tolist()
    for i in range(2 * NODES):
        words = [verdict(answers, CLASSES * i + c) for c in range(CLASSES)]
        assert every.count[i] == words.count("can")


def test_rankings_and_confusions(asked):
    exposure, solution, y = asked
    uses, mass, gained, alone = Counter(), Counter(), Counter(), Counter()
    alpha = exposure.coefficients.numpy()
    for i in range(len(solution)):
        part = range(solution.indptr[i], solution.indptr[i + 1])
        if verdict(solution, i) != "can":
            continue
        heard = {int(solution.sources[k]) for k in part}
        for source in heard:
            uses[source] += 1
            alone[source] += len(heard) == 1
        for k in part:
            source, share = int(solution.sources[k]), solution.coefficients[k]
            mass[source] += share
            gained[source] += max(share - alpha[solution.member[i], solution.terms[k]], 0)
    ranked = source_ranking(solution, exposure)
    assert ranked["source"].tolist() == sorted(uses, key=lambda s: (-uses[s], -gained[s], s))
    for row in ranked.itertuples():
        assert (row.witnesses, row.alone) == (uses[row.source], alone[row.source])
        assert (row.mass, row.gained) == pytest.approx((mass[row.source], gained[row.source]))
    counts = Counter()
    for _, _, t, p, words, _ in rows_of(exposure, solution, y):
        counts[t, p, words[t]] += 1
    shown = confusion_by_reach(solution, exposure, y)
    for row in shown.itertuples():
        said = [counts[row.true, row.predicted, w] for w in ("can", "cannot", "undecided")]
        assert [row.can, row.cannot, row.undecided] == said and row.nodes == sum(said)
    assert shown["nodes"].sum() == sum(counts.values())
    order = [(-row.nodes, row.true) for row in shown.itertuples()]
    assert order == sorted(order) and shown["nodes"].nunique() > 1


def test_baselines(asked, tmp_path):
    _, solution, _ = asked
    later = planted(solution, 77)
    half = later.taken(np.arange(0, len(later), 2))
    save_baseline(solution.taken(np.arange(5, len(solution))), tmp_path / "b.json", 0.25)
    for today, before in ((half, tmp_path / "b.json"), (half, load_baseline(tmp_path / "b.json"))):
        found = compare(today, before, chance=0.5)
        old = {i: verdict(solution, i) for i in range(5, len(solution))}
        new = {2 * k: verdict(half, k) for k in range(len(half))}
        both = sorted(old.keys() & new.keys())
        lost = [i for i in both if old[i] == "can" and new[i] != "can"]
        gained = [i for i in both if old[i] != "can" and new[i] == "can"]
        assert (found.compared, found.missing, found.new) == (
            len(both), len(old) - len(both), len(new) - len(both),
        )  # fmt: skip
        assert found.reach_before == pytest.approx(mean(old[i] == "can" for i in both))
        assert found.reach_after == pytest.approx(mean(new[i] == "can" for i in both))
        assert (len(found.lost), len(found.gained)) == (len(lost), len(gained))
        assert len(found.changes) == sum(old[i] != new[i] for i in both)
        assert (found.chance_before, found.chance_after) == (0.25, 0.5)
        names = ["member", "node", "class"]
        at = [[int(x[i]) for x in (solution.member, solution.node, solution.target)] for i in lost]
        assert found.lost[names].to_numpy().tolist() == at
    assert not found.ok(1.0)  # something is missing


@pytest.mark.parametrize("seed", [1, 2])
def test_a_study_s_counts(seed, monkeypatch):
    exposure, rng = exposed(seed), np.random.default_rng(seed)
    y = torch.from_numpy(rng.integers(0, CLASSES, NODES))
    part = torch.from_numpy(rng.integers(0, 3, (NODES, 2)))
    asked = planted(solve(exposure, y, part > 0), seed)
    every = solve(exposure, "all").reachable.reshape(2, NODES, CLASSES)
    monkeypatch.setattr("gnn_repair.study.measures.solve", lambda *_: asked)
    masks = {"val": part == 1, "test": part == 2}
    found = summarise_oracle(exposure, y, masks, OracleProtocol()).summaries
    predicted = exposure.frozen_logits.argmax(2)
    assert sum(summary[name]["undecided"] for summary in found for name in ("val", "test")) > 3
    for s, summary in enumerate(found):
        for name, number in (("val", 1), ("test", 2)):
            here = [i for i in range(len(asked)) if asked.member[i] == s]
            here = [i for i in here if part[asked.node[i], s] == number]
            known = [i for i in here if verdict(asked, i) != "undecided"]
            can = [i for i in known if verdict(asked, i) == "can"]
            wrong = [i for i in known if predicted[s, asked.node[i]] != asked.target[i]]
            fixed, told = set(can) & set(wrong), summary[name]
            counts = {"nodes": known, "reachable": can, "errors": wrong, "reachable_errors": fixed}
            assert {key: told[key] for key in counts} == {k: len(v) for k, v in counts.items()}
            assert told["undecided"] == len(here) - len(known)
            assert told["true_class_reach"] == len(can) / len(known)
            assert told["error_reach"] == len(fixed) / len(wrong)
            assert told["support"] == pytest.approx(mean(float(asked.support[i]) for i in can))
        errors = [v for v in range(NODES) if part[v, s] == 2 and predicted[s, v] != y[v]]
        classes = mean(float(every[s, v].sum()) for v in errors)
        assert summary["test"]["reachable_classes"] == pytest.approx(classes)


def test_relaxed_reach_is_over_what_is_decided():
    rng = np.random.default_rng(0)
    words, member = ["can", "cannot", "undecided"], np.repeat([0, 1, 2], [7, 4, 2])
    verdict = rng.choice(words, (3, 13))
    verdict[:, 11:] = "undecided"  # a member without any answer
    margin = np.where(verdict == "can", 1.0, nan)
    found = RelaxedMargins((0.0, 0.5, 1.0), False, member, member, member, margin, margin, verdict)
    for k, row in enumerate(verdict):
        by_member = [[w for w in row[member == s] if w != "undecided"] for s in range(3)]
        shares = [mean(w == "can" for w in own) for own in by_member]
        assert found.reach[k] == pytest.approx(mean(shares))
        said = [sum(row == w) for w in words]
        assert (found.rates[k].hits, found.rates[k].undecided) == (said[0], said[2])
        assert found.rates[k].total == sum(said) and f"{said[2]:,} undecided" in str(found)


# Labels -------------------------------------------------------------------------------------------


def f1(pairs):
    hit = sum(said and true for said, true in pairs)
    missed, false = (sum((true - said) == d for said, true in pairs) for d in (1, -1))
    return 2 * hit / (2 * hit + missed + false) if hit + missed + false else nan


@pytest.mark.parametrize("seed", [4, 5])
def test_labels(seed):
    exposure, rng = exposed(seed, "labels"), np.random.default_rng(seed)
    y = torch.from_numpy(rng.choice([0.0, 1.0, nan], (NODES, CLASSES), p=[0.5, 0.3, 0.2]))
    own, other = (planted(solve(exposure, side), seed + k) for k, side in enumerate((y, 1 - y)))
    found = summarise_labels(exposure, own, other)
    rows = []
    for i in range(len(own)):
        s, v, k = (int(x[i]) for x in (own.member, own.node, own.target))
        said = bool(exposure.frozen_logits[s, v, k] > 0)
        rows.append((k, bool(y[v, k]), said, verdict(own, i), verdict(other, i), v))
    assert found.skipped == 2 * int(y.isnan().sum()) and len(rows) == 2 * int((~y.isnan()).sum())

    def counts(kept, column):
        words = [row[column] for row in kept]
        return words.count("can"), len(words), words.count("undecided")

    def check(rate, kept, column):
        assert (rate.hits, rate.total, rate.undecided) == counts(kept, column)

    wrong, right = ([r for r in rows if (r[1] != r[2]) == side] for side in (True, False))
    check(found.micro, rows, 3)
    check(found.micro_error, wrong, 3)
    check(found.chance, right, 4)
    frame, scores = found.to_frame(), []
    for k, one in enumerate(found.labels):
        of = [[r for r in part if r[0] == k] for part in (rows, wrong, right)]
        check(one.reach, of[0], 3)
        check(one.error, of[1], 3)
        check(one.chance, of[2], 4)
        hits, total, open_ = counts(of[0], 3)
        shown = frame.iloc[k]
        assert (shown["reach_low"], shown["reach_high"]) == pytest.approx(
            wilson(hits, hits + open_, total)
        )
        before = [(said, true) for _, true, said, *_ in of[0]]
        # An error that is not proved out of reach may be undone: no reweighting does better.
        best = [(said if word == "cannot" else true, true) for _, true, said, word, *_ in of[0]]
        assert (shown["f1"], shown["f1_within_reach"]) == pytest.approx((f1(before), f1(best)))
        scores.append((hits / total, mean(r[3] == "can" for r in of[1])))
        assert shown["undecided"] == open_ and shown["error_reach"] == scores[-1][1]
    macro = [fmean(x) for x in zip(*scores, strict=True)]
    assert (found.macro, found.macro_error) == pytest.approx(macro)
    lines = str(found).split("\n")
    for line, rate, figure in zip(lines, (found.micro, found.micro_error), macro, strict=False):
        assert f"{rate}; macro {100 * figure:.1f} %" in line
    assert str(found.chance) in lines[2] and f"{found.frozen}; within reach" in lines[3]
    low = mean(r[3] == "can" for r in wrong) - mean(r[4] != "cannot" for r in right)
    high = mean(r[3] != "cannot" for r in wrong) - mean(r[4] == "can" for r in right)
    assert (found.excess.low, found.excess.high) == pytest.approx((low, high))
    assert found.excess.interval[0] < low <= high < found.excess.interval[1]
