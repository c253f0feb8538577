"""From a run to its report file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gnn_repair import __version__
from gnn_repair.atomic import check_target, replacing
from gnn_repair.errors import InputError
from gnn_repair.exposure import Exposure
from gnn_repair.notebook import PagePath
from gnn_repair.oracle.metrics import Reach, reach
from gnn_repair.reporting.beside import Beside, beside_payload
from gnn_repair.reporting.corrections import RepairLike
from gnn_repair.reporting.evidence import Evidence, Solution, gather
from gnn_repair.reporting.inputs import check_made, check_results, check_single, check_words
from gnn_repair.reporting.lost import lost_evidence
from gnn_repair.reporting.nouns import counted, plural
from gnn_repair.reporting.overview import case_of_run, cases_of_results
from gnn_repair.reporting.page import build_page
from gnn_repair.reporting.parts import (
    SINGLE_BYTES,
    STORED_BYTES,
    encoded_bytes,
    forget_parts,
    parts_folder,
    split_content,
    write_parts,
)
from gnn_repair.reporting.payload import run_payload

if TYPE_CHECKING:
    import pandas as pd


def report(
    exposure: Exposure,
    y: Tensor,
    path: str | Path,
    *,
    nodes: Tensor | None = None,
    member: int = 0,
    solution: Solution | None = None,
    repairs: Mapping[str, RepairLike] | None = None,
    edge_index: Tensor | None = None,
    class_names: Sequence[str] | None = None,
    node_names: Sequence[str] | None = None,
    dataset: str = "",
    backbone: str = "",
    title: str | None = None,
    selection: str | None = None,
    note: str = "",
    split: int | None = None,
    made: Mapping[str, str] | None = None,
    results: pd.DataFrame | None = None,
    beside: Mapping[str, Beside | Evidence] | None = None,
    single_file: bool | None = True,
) -> Path:
    """Write one self-contained HTML file that shows the evidence of every chosen node.

    Args:
        exposure: the frozen model's final aggregation, with a tail or without.
        y: [N] true classes, −1 where unknown (such nodes are not shown).
        path: the file to write.
        nodes: mask [N] or [N, S] (test nodes, usually), node numbers, or None for all.
        member: which member (split) of the exposure is shown.
        solution: the oracle's answers for the true class; solved here unless given.
        repairs: by name, fitted repairs or logits [N, C] of one's own method.
        edge_index: [2, E] the graph; gives degrees and the edges among sources.
        class_names, node_names: what people call them; shown as text, never as markup.
        dataset, backbone: name the case; the published numbers are shown where they exist.
        title: the page's heading.
        selection: what the chosen nodes are called, such as "test nodes"; the page cannot know.
        note: which run this is, or anything else that belongs under the heading.
        split: the run's split, which finds it among the splits of ``results``.
        made: what the footer says of how the page was made, such as protocol, seed and command.
        results: a study's long-form results, for the spread over splits and other cases.
        beside: by title, the evidence of other runs on the same graph (what ``gather`` returns
            for another split or model), to compare nodes with.
        single_file: None puts the terms into files beside the page where it would be above 20 MB,
            for ``gnn-repair view`` to serve; False does so in any case. In a large single file a
            sample of the nodes can be opened.

    Returns:
        The path.
    """
    check_target(path)
    check_words(dataset=dataset, backbone=backbone, title=title, selection=selection, note=note)
    check_results(results)
    check_made(made, split)
    check_single(single_file)
    evidence = gather(
        exposure,
        y,
        nodes,
        member=member,
        solution=solution,
        repairs=repairs,
        edge_index=edge_index,
    )
    nouns = plural(evidence.noun)
    selection = selection or (nouns if nodes is None else f"chosen {nouns}")
    if node_names is None and exposure.n_id is not None:
        node_names = [str(number) for number in exposure.n_id.tolist()]
    words, arrays = run_payload(
        evidence,
        class_names=class_names,
        node_names=node_names,
        selection=selection,
        dataset=dataset,
        backbone=backbone,
        split=split,
        limit=None if single_file else STORED_BYTES,
    )
    words["lost"] = lost_evidence(repairs, member, exposure.num_classes)
    words["chance"] = chance_words(exposure, evidence, member)
    heading = title or exposure.origin or "Evidence of a trained model"
    content = {
        "title": heading,
        "subtitle": _subtitle(evidence, words["explored"], words["left_out"], note),
        "run": words,
        "arrays": arrays,
        "beside": beside_payload(beside, evidence),
        "study": _study(evidence, words, results),
        "made": making(made),
    }
    return write_page(content, path, single_file=single_file)


def chance_words(exposure: Exposure, evidence: Evidence, member: int) -> dict[str, Any] | None:
    """Chance beside error reach, in per cent and points; None: no errors, or two classes.

    With a nonlinear head a question may take seconds, so that only errors are asked about.
    """
    wrong = ~evidence.right
    if not wrong.any() or evidence.num_classes < 3:
        return None
    tailed = exposure.head is not None
    nodes = torch.from_numpy(evidence.nodes[wrong] if tailed else evidence.nodes)
    y = torch.from_numpy(evidence.labels[: exposure.num_nodes])
    found = reach(exposure.member(member), y, nodes)
    assert isinstance(found, Reach)
    chance, more = found.chance, found.excess.words(100, sign="+", unit=" points")
    classes = f"{found.classes_per_error.words()} of {evidence.num_classes} classes"
    return {
        "low": 100 * chance.low,
        "high": 100 * chance.high,
        "everyone": None if tailed else 100 * found.true_class_chance.low,
        "words": (
            f"Chance: at these errors {chance.words(100, unit=' %')} of the classes neither true "
            f"nor predicted could win; the true class exceeds that by {more}. {classes} can win "
            "per error."
        ),
    }


def report_results(
    results: pd.DataFrame,
    path: str | Path,
    *,
    title: str = "Study",
    made: Mapping[str, str] | None = None,
) -> Path:
    """Write the overview of a study's results alone, without any node."""
    check_words(title=title)
    check_made(made, None)
    if results is None:
        raise InputError("there are no results to show; give those of gnn_repair.read_results")
    check_results(results)
    cases = cases_of_results(results)
    if not cases:
        raise InputError("the results hold no test accuracy; run the study first")
    subtitle = f"{len(cases)} cases; the overview of a study, without single nodes"
    content = {
        "title": title,
        "subtitle": subtitle,
        "run": None,
        "study": {"cases": cases, "shown": 0},
        "made": making(made),
    }
    return write_page(content, path)


def making(made: Mapping[str, str] | None) -> dict[str, str]:
    """What the footer says: the version, then what the caller knows."""
    return {"version": f"gnn-repair {__version__}", **(made or {})}


def write_page(
    content: Mapping[str, Any], path: str | Path, *, single_file: bool | None = True
) -> Path:
    """Write the page whole or not at all, with parts beside it where it is large."""
    path = check_target(path)
    parts: Mapping[str, Any] = {}
    large = encoded_bytes(content) > SINGLE_BYTES if single_file is None else not single_file
    if large and content["run"] is not None:
        content, parts = split_content(content, path)
        write_parts(parts, parts_folder(path))
    with replacing(path) as temporary:
        temporary.write_text(build_page(content), encoding="utf-8")
    forget_parts(parts_folder(path), parts)
    return PagePath(path)


def _subtitle(evidence: Evidence, explored: int, left_out: int, note: str) -> str:
    errors = int((~evidence.right).sum())
    noun = evidence.noun
    parts = [f"{counted(len(evidence.nodes), noun)}, {errors:,} of them misclassified"]
    if evidence.unlabelled:
        are = "is" if evidence.unlabelled == 1 else "are"
        parts.append(f"{counted(evidence.unlabelled, noun)} without a label {are} not shown")
    if explored < len(evidence.nodes):
        parts.append(
            f"figures and charts are over all of them, and a sample of {explored:,}, spread evenly "
            "from the largest γ to the smallest, can be opened one by one"
        )
    if left_out:
        parts.append(f"terms of {counted(left_out, noun)} left out to keep the file small")
    sentences = ["; ".join(parts), _about_tail(evidence), note[:1].upper() + note[1:]]
    return ". ".join(filter(None, sentences))


def _about_tail(evidence: Evidence) -> str:
    """What kind of model and of answers these are, where it ends in a nonlinear tail."""
    if evidence.tail is None:
        return ""
    open_ = int((~evidence.tail.decided).sum())
    are = "is" if open_ == 1 else "are"
    decided = f"{counted(open_, evidence.noun)} {are} undecided" if open_ else "all are decided"
    scope = f", {evidence.tail.scope}" if evidence.tail.scope else ""
    return f"The model's mixture is followed by {evidence.tail.words}{scope}; {decided}"


def _study(
    evidence: Evidence, words: Mapping[str, Any], results: pd.DataFrame | None
) -> dict[str, Any]:
    """The study's cases with the shown one among them; the run alone where there is no study."""
    cases = [] if results is None else cases_of_results(results)
    for index, case in enumerate(cases):
        if (case["dataset"], case["backbone"]) == (words["dataset"], words["backbone"]):
            return {"cases": cases, "shown": index}
    own = case_of_run(
        evidence,
        words["dataset"],
        words["backbone"],
        selection=words["selection"],
        split=words["split"],
    )
    return {"cases": [own, *cases], "shown": 0}
