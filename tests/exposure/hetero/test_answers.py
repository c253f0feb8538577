"""Oracle, files, frames, repairs, repaired modules and pages of exposures of several node types."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from torch import nn
from torch_geometric.data import Data, HeteroData

import gnn_repair as gr
from gnn_repair import Exposure, expose, solve
from gnn_repair.errors import InputError
from gnn_repair.exposure.pieces import ONE_KIND, NodeNames
from gnn_repair.oracle import source_ranking
from gnn_repair.repair.baselines import sources_to_recipients
from gnn_repair.repair.evidence import summary
from gnn_repair.repair.inputs import RepairInputs
from tests.helpers.models.typed_models import CLASSES, Attributed, Heads, build, graph
from tests.helpers.report.pages import payload_of

SENDER = re.compile(r"(paper|author|venue) (\d+) \(λ ([\d.e+-]+), (\w+ \w+ \w+)\)")


@pytest.fixture(scope="module")
def affine() -> tuple[nn.Module, HeteroData, Exposure]:
    model, data = build("HeteroConv by sum")
    exposure = expose(model, data)
    assert exposure.head is None
    return model, data, exposure


@pytest.fixture(scope="module")
def tailed() -> tuple[nn.Module, HeteroData, Exposure]:
    model, data = build("HeteroConv then ReLU")
    exposure = expose(model, data)
    assert exposure.head is not None
    return model, data, exposure


# Names ------------------------------------------------------------------------------------------


def test_names() -> None:
    names = NodeNames("paper", (("paper", 30), ("author", 18), ("venue", 7)), ("a writes b",))
    sources = np.array([0, 29, 30, 47, 48, 54, -1])
    kinds, numbers = names.split(sources)
    assert kinds[:-1].tolist() == ["paper"] * 2 + ["author"] * 2 + ["venue"] * 2
    assert numbers.tolist() == [0, 29, 0, 17, 0, 6, -1]
    assert names.sender(47) == "author 17" and names.sender(-1) == "no message"
    assert (names.count(30), names.own(30), names.node(3)) == (55, 30, "paper 3")
    assert names.group(0) == "a writes b" and ONE_KIND.group(2) == "group 2"
    assert ONE_KIND.sender(4) == "node 4" and ONE_KIND.own(9) == ONE_KIND.count(9) == 9
    assert NodeNames("graph", (("node", 5),)).own(2) == 0
    assert NodeNames.of_header(json.loads(json.dumps(names.header()))) == names
    assert NodeNames.of_header(None) == ONE_KIND


@pytest.mark.parametrize(
    "header",
    [
        {}, {"recipient": "a", "senders": 3, "groups": []},
        {"recipient": 1, "senders": [], "groups": []},
        {"recipient": "a", "senders": [["b", -1]], "groups": []},
        {"recipient": "a", "senders": [["b", 1.5]], "groups": []},
        {"recipient": "a", "senders": [["b"]], "groups": []},
    ],
)  # fmt: skip
def test_names_that_nobody_wrote(header: Any) -> None:
    with pytest.raises(InputError, match="its names of nodes"):
        NodeNames.of_header(header)


def test_sources_beyond_the_last_sender(affine: tuple[Any, Any, Exposure]) -> None:
    from dataclasses import replace

    with pytest.raises(InputError, match=r"sources must lie in -1\.\.54"):
        replace(affine[2], sources=affine[2].sources + 30)


# Oracle -----------------------------------------------------------------------------------------


def by_scipy(frame: Any, fixed: np.ndarray, target: int) -> float:
    """γ of one node by another solver: max t with z_c − z_r ≥ t and every relation's mass."""
    logits = frame.filter(like="logit ").to_numpy()
    rivals = [c for c in range(CLASSES) if c != target]
    gaps = logits[:, [target]] - logits[:, rivals]
    above = np.hstack([-gaps.T, np.ones((len(rivals), 1))])
    limit = fixed[target] - fixed[rivals]
    groups = frame["group"].unique()
    equal = np.stack([(frame["group"] == g).to_numpy().astype(float) for g in groups])
    mass = equal @ frame["coefficient"].to_numpy()
    found = linprog(
        np.append(np.zeros(len(frame)), -1.0), A_ub=above, b_ub=limit,
        A_eq=np.hstack([equal, np.zeros((len(groups), 1))]), b_eq=mass,
        bounds=[(0, None)] * len(frame) + [(None, None)],
    )  # fmt: skip
    return -found.fun


def test_the_oracle_agrees_with_another_solver(affine: tuple[Any, HeteroData, Exposure]) -> None:
    _, data, exposure = affine
    y = data["paper"].y
    solution = solve(exposure, y)
    assert solution.check(exposure).ok
    for witness in solution[:10]:
        frame = exposure.to_frame([witness.node])
        fixed = exposure.fixed_logits[0, witness.node].numpy()
        assert witness.margin == pytest.approx(by_scipy(frame, fixed, witness.target), abs=1e-9)


def test_witnesses_name_type_relation_and_number(
    affine: tuple[nn.Module, HeteroData, Exposure], tmp_path: Path
) -> None:
    _, data, exposure = affine
    solution = solve(exposure, data["paper"].y)
    solution.save(tmp_path / "solution")
    again = type(solution).load(tmp_path / "solution")
    assert again.names == solution.names == exposure.term_names
    told = 0
    for witness, read in zip(solution, again, strict=True):
        assert str(witness) == str(read) and str(witness).startswith(f"paper {witness.node}, ")
        for kind, number, share, relation in SENDER.findall(str(witness)):
            ends = data[tuple(relation.split())].edge_index
            assert relation.split()[0] == kind
            assert bool(((ends[0] == int(number)) & (ends[1] == witness.node)).any())
            assert 0 < float(share) <= 1.0001
            told += 1
    assert told > 20
    ranked = source_ranking(solution, exposure)
    assert set(ranked["source_type"]) == {"paper", "author", "venue"}
    assert (ranked["source"] < ranked["source_type"].map(dict(exposure.names.senders))).all()


def test_other_answers_name_them_too(
    affine: tuple[nn.Module, HeteroData, Exposure], tailed: tuple[Any, HeteroData, Exposure]
) -> None:
    texts: list[str] = []
    for _, data, exposure in (affine, tailed):
        y, nodes = data["paper"].y, torch.arange(12)
        for answers in (
            gr.nearest_reweighting(exposure, y, nodes),
            gr.stable_evidence(exposure, y, nodes),
        ):
            assert all(str(one).startswith(f"paper {one.node}, ") for one in answers)
            texts += map(str, answers)
    told = " ".join(texts)
    assert "author " in told and "venue " in told and "node " not in told
    solution = solve(tailed[2], tailed[1]["paper"].y, torch.arange(8))
    assert solution.check(tailed[2]).ok
    told = " ".join(map(str, solution))
    assert "author writes paper)" in told and "node " not in told


def test_a_file_is_bound_by_its_type(
    tailed: tuple[nn.Module, HeteroData, Exposure], tmp_path: Path
) -> None:
    model, data, exposure = tailed
    exposure.save(tmp_path / "exposure")
    bound = Exposure.load(tmp_path / "exposure").bind(model, data, node_type="paper")
    torch.testing.assert_close(bound.replay(bound.coefficients[0]), exposure.frozen_logits[0])  # type: ignore[misc]


def test_explainers_and_ladders_say_what_they_need(
    affine: tuple[Any, HeteroData, Exposure],
) -> None:
    model, data, exposure = affine
    from gnn_repair.oracle.explainer import exposed_layers
    from gnn_repair.repair.targets import check_graph_data

    with pytest.raises(InputError, match="this graph has several relations; use solve"):
        exposed_layers(model, exposure)
    with pytest.raises(InputError, match="pass a Data of the 'paper' nodes alone"):
        check_graph_data(exposure, data)
    edges = data["paper", "cites", "paper"].edge_index
    check_graph_data(exposure, Data(x=data["paper"].x, edge_index=edges))


# Repairs ----------------------------------------------------------------------------------------


def test_what_repairs_read_of_senders(affine: tuple[Any, HeteroData, Exposure]) -> None:
    _, _, exposure = affine
    inputs, width = RepairInputs(exposure), exposure.state.shape[2]
    described = inputs.messages.at(torch.arange(inputs.messages.rows.shape[1]).unsqueeze(0))[0]
    assert described.shape[1] == width + CLASSES
    frame = exposure.to_frame()
    columns = inputs.sets.columns.long()
    for k in range(0, len(frame), 7):
        state, logits = described[columns[k], :width], described[columns[k], width:]
        behind = exposure.messages[0, exposure.message_rows[exposure.rows[k].long()].long()]
        torch.testing.assert_close(state, behind)
        own = frame["source_type"][k] == "paper"
        source = int(frame["source"][k])
        expected = exposure.frozen_logits[0, source] if own else torch.zeros(CLASSES).double()
        torch.testing.assert_close(logits, expected)


def test_the_ladder_takes_senders_of_other_types_for_undecided(
    affine: tuple[Any, HeteroData, Exposure],
) -> None:
    _, _, exposure = affine
    width, groups = exposure.state.shape[2], exposure.num_groups
    first = 2 * width + 2 * CLASSES + 3
    found = summary(RepairInputs(exposure))[0, :, first : first + CLASSES]
    told = exposure.frozen_logits[0].softmax(1)
    ends, sources = exposure.segments[::groups].tolist(), exposure.sources[exposure.rows.long()]
    for place, (start, stop) in enumerate(pairwise(ends)):
        alpha = exposure.coefficients[0, start:stop].abs().double()
        senders = sources[start:stop].tolist()
        said = [told[s] if s < len(told) else torch.full((CLASSES,), 1 / CLASSES) for s in senders]
        expected = sum(a / alpha.sum() * p for a, p in zip(alpha, said, strict=True))
        if stop > start:
            torch.testing.assert_close(found[place].double(), expected.double())
    assert int(sources.max()) >= len(told)


def test_links_among_recipients_are_those_of_their_own_type(
    affine: tuple[Any, HeteroData, Exposure],
) -> None:
    _, data, exposure = affine
    ends = data["paper", "cites", "paper"].edge_index
    found = sources_to_recipients(exposure)
    assert sorted(zip(*found.tolist(), strict=True)) == sorted(zip(*ends.tolist(), strict=True))


def arguments(model: nn.Module, data: HeteroData) -> tuple[Any, ...]:
    if isinstance(model, Heads):
        return (data,)
    more = (data.edge_attr_dict,) if isinstance(model, Attributed) else ()
    return (data.x_dict, data.edge_index_dict, *more)


def of_paper(output: Any) -> Any:
    """What a model says of papers, whatever it returns."""
    said = output[0] if isinstance(output, tuple) else output
    return said["paper"] if isinstance(said, dict) else said


@pytest.mark.parametrize("name", ["own wrapper", "HGT", "HAN", "logits for every type"])
def test_a_repaired_model_stands_in_for_the_model(name: str, tmp_path: Path) -> None:
    model, data = build(name)
    exposure, y = expose(model, data), data["paper"].y
    train = torch.arange(len(y)) < 20
    fitted = gr.NodeTranslation(epochs=20, lr=0.05, hidden=8).fit(exposure, y, train, ~train)
    module = gr.repaired(model, fitted)
    other = graph(seed=5)
    for given in (data, other, data):
        expected = fitted.member_logits(expose(model, given))[0]
        seen, before = module(*arguments(model, given)), model(*arguments(model, given))
        assert type(seen) is type(before)
        torch.testing.assert_close(of_paper(seen), expected, rtol=0, atol=1e-8)
    module.save(tmp_path / "repaired")
    again = gr.RepairedModel.load(tmp_path / "repaired", model)
    both = (of_paper(one(*arguments(model, data))) for one in (again, module))
    torch.testing.assert_close(*both)


# The page -----------------------------------------------------------------------------------------


def test_the_page_names_senders(affine: tuple[Any, HeteroData, Exposure], tmp_path: Path) -> None:
    _, data, exposure = affine
    ends = data["paper", "cites", "paper"].edge_index
    path = gr.report(exposure, data["paper"].y, tmp_path / "page.html", edge_index=ends)
    content = payload_of(path)
    names, papers = content["run"]["names"], data["paper"].num_nodes
    assert names[:papers] == [str(k) for k in range(papers)]
    seen = exposure.to_frame()
    foreign = seen[seen["source_type"] != "paper"]
    told = foreign["source_type"] + " " + foreign["source"].astype(str)
    assert sorted(names[papers:]) == sorted(set(told))
    assert content["run"]["groups"] == [group.name for group in exposure.groups]


def test_degrees_count_all_senders(affine: tuple[Any, HeteroData, Exposure]) -> None:
    from gnn_repair.reporting.evidence import gather

    _, data, exposure = affine
    evidence = gather(exposure, data["paper"].y)
    seen = exposure.to_frame()
    seen = seen[(seen["source_type"] != "paper") | (seen["source"] != seen["node"])]
    pairs = seen.drop_duplicates(["node", "source_type", "source"])
    counted = pairs.groupby("node").size().reindex(evidence.nodes, fill_value=0)
    assert evidence.degree.tolist() == counted.tolist()
    assert len(evidence.labels) == len(evidence.predictions) == 30 + len(evidence.senders)
    assert (evidence.labels[30:] == -1).all() and evidence.sources.max() < len(evidence.labels)


def test_only_senders_that_are_shown_are_numbered(affine: tuple[Any, HeteroData, Exposure]) -> None:
    from gnn_repair.reporting.evidence import gather

    _, data, exposure = affine
    evidence = gather(exposure, data["paper"].y, torch.arange(4))
    seen = exposure.to_frame(list(range(4)))
    foreign = seen[seen["source_type"] != "paper"]
    told = set(foreign["source_type"] + " " + foreign["source"].astype(str))
    assert set(evidence.senders) == told and len(told) < 20
    last = evidence.rows[np.flatnonzero(evidence.sources[evidence.rows] >= 30)]
    names = {evidence.senders[k - 30] for k in evidence.sources[last]}
    assert names == told
