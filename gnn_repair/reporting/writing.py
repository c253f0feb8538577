"""Writes the report file of a run or of a study."""

from __future__ import annotations

import html
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from importlib import resources
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from gnn_repair import __version__
from gnn_repair.atomic import check_target, replacing
from gnn_repair.budget import check_type, check_whole
from gnn_repair.errors import InputError, suggestion
from gnn_repair.exposure import Exposure
from gnn_repair.methods import METHODS, title_of
from gnn_repair.notebook import PagePath
from gnn_repair.published import count_of, plural, published_cell
from gnn_repair.reporting.evidence import (
    Answers,
    Correction,
    Evidence,
    RepairLike,
    best_on,
    chosen_nodes,
    gather,
)
from gnn_repair.reporting.payload import (
    PARTS,
    SINGLE_BYTES,
    STORED_BYTES,
    Beside,
    as_json,
    beside_payload,
    forget_parts,
    lost_evidence,
    parts_folder,
    run_payload,
    script_safe,
    split_content,
)
from gnn_repair.results.protocol import Protocol
from gnn_repair.study.case import Rerun

if TYPE_CHECKING:
    import pandas as pd

RESULT_COLUMNS = ("dataset", "backbone", "split", "method", "part", "metric", "value")
REACH = ("true_class_reach", "error_reach", "support")


@dataclass(frozen=True, eq=False)
class PageContext:
    """The context of the evidence on a page: names, and the study that the run belongs to."""

    title: str | None = None
    """The page's heading; model and dataset unless given."""
    selection: str | None = None
    """The words for the shown nodes, such as ``test nodes``."""
    class_names: Sequence[str] | None = None
    node_names: Sequence[str] | None = None
    """Names of nodes and classes are shown as text, never as markup."""
    dataset: str = ""
    """With ``backbone`` the case, whose published numbers are shown where they exist."""
    backbone: str = ""
    split: int | None = None
    """The run's split among those of ``results``."""
    note: str = ""
    """Text under the heading, such as which run this is."""
    made: Mapping[str, str] | None = None
    """Lines of the footer by name, such as protocol, seed and command."""
    results: pd.DataFrame | None = None
    """A study's long-form results, for the spread over splits and other cases."""
    beside: Mapping[str, Beside | Evidence] | None = None
    """By title, the evidence of other runs on the same graph (what ``gather`` returns for another
    split or model), to compare nodes with."""

    def __post_init__(self) -> None:
        settings = {} if self.made is None else self.made
        check_type("made", settings, Mapping, "a mapping from words to words")
        words = {f"made[{name!r}]": value for name, value in settings.items()}
        fields = ("title", "selection", "dataset", "backbone", "note")
        for name, value in ({n: getattr(self, n) for n in fields} | words).items():
            check_type(name, "" if value is None else value, str, "a text")
        columns = RESULT_COLUMNS if self.results is None else getattr(self.results, "columns", ())
        for name in RESULT_COLUMNS:
            if name not in columns:
                raise InputError(
                    f"results lacks the column {name!r}; give what gnn_repair.read_results returns"
                )
        if self.split is not None:
            check_whole("PageContext", "split", self.split, 0)


def report(
    exposure: Exposure,
    y: Tensor,
    path: str | Path,
    *,
    nodes: Tensor | None = None,
    val: Tensor | None = None,
    member: int = 0,
    repairs: Mapping[str, RepairLike] | None = None,
    edge_index: Tensor | None = None,
    answers: Answers | None = None,
    context: PageContext | None = None,
    single_file: bool | None = True,
    **words: Any,
) -> Path:
    """Write one self-contained HTML file that shows the evidence of every chosen node.

    Args:
        exposure: the frozen model's final aggregation.
        y: [N] true classes, −1 where unknown (such nodes are not shown).
        path: the file to write.
        nodes: mask [N] or [N, S] (test nodes, usually), node numbers, or None for all.
        val: validation nodes likewise, on which the best of the repairs is chosen.
        member: which member (split) of the exposure is shown.
        repairs: by name, fitted repairs or logits [N, C] of your own method.
        edge_index: [2, E] the graph; gives the edges among sources, and degrees by who sends.
        answers: of an exposure with one member, ``(reach, reach.changes)`` of these nodes as from
            :func:`gnn_repair.reach`; computed unless given.
        context: title, names and the study around it.
        single_file: None puts the terms into files beside the page where it would be above 20 MB,
            for ``gnn-repair view`` to serve; False always does. In a large single file only a
            sample of the nodes can be opened.
        **words: fields of the context: ``title``, ``selection`` (such as "test nodes"),
            ``class_names``, ``node_names``, ``dataset``, ``backbone``, ``split``, ``note``,
            ``made``, ``results``, ``beside``.

    Returns:
        The path.
    """
    check_target(path)
    context = _context(context, words)
    if single_file is not None and not isinstance(single_file, bool):
        raise InputError(f"single_file is {single_file!r:.60}; give True, False or None")
    evidence = gather(
        exposure,
        y,
        nodes,
        member=member,
        repairs=repairs,
        edge_index=edge_index,
        all_classes=True,
        answers=answers,
    )
    names = context.node_names
    if names is None and exposure.n_id is not None:
        names = [str(number) for number in exposure.n_id.tolist()]
    limit = None if single_file else STORED_BYTES
    content, arrays = run_payload(evidence, context.class_names, names, limit)
    best = None
    if val is not None and repairs:
        val = chosen_nodes(exposure, val, member, "val")
        best = {"key": best_on(repairs, exposure, y, val, member), "nodes": len(val)}
    nouns = plural(evidence.noun)
    content |= {
        "selection": context.selection or (nouns if nodes is None else f"chosen {nouns}"),
        "dataset": context.dataset,
        "backbone": context.backbone,
        "split": context.split,
        "best": best,
        "lost": lost_evidence(repairs, member, exposure.num_classes),
        "chance_summary": chance_words(evidence),
    }
    page = {
        "title": context.title or _heading(exposure.origin, context.dataset),
        "subtitle": _subtitle(evidence, content["explored"], content["left_out"], context.note),
        "run": content,
        "arrays": arrays,
        "beside": beside_payload(context.beside, evidence),
        "study": _study(evidence, content, context.results),
    }
    return write_page(page, path, context.made, single_file=single_file)


def _context(context: PageContext | None, words: dict[str, Any]) -> PageContext:
    """The context with these fields; ``solution`` was an option of version 0.2."""
    context = PageContext() if context is None else context
    check_type("context", context, PageContext, "a gnn_repair.reporting.PageContext")
    if "solution" in words:
        del words["solution"]
        text = "report(…, solution=) goes away; leave it out"
        warnings.warn(text, DeprecationWarning, stacklevel=3)
    own = {one.name for one in fields(PageContext)}
    for name in words.keys() - own:
        near = suggestion(name, sorted(own | signature(report).parameters.keys()))
        raise TypeError(f"report() got an unexpected keyword argument {name!r}; {near}")
    return replace(context, **words)


def _heading(origin: str, dataset: str) -> str:
    """Model and dataset, if known."""
    if not origin:
        return f"Evidence on {dataset}" if dataset else "Evidence of a trained model"
    return origin if not dataset or dataset in origin else f"{origin} on {dataset}"


def chance_words(evidence: Evidence) -> dict[str, Any] | None:
    """Chance beside error reach, in per cent and points; None: no errors, or two classes."""
    reach = None if evidence.classes is None else evidence.classes.figures
    if reach is None or evidence.right.all() or evidence.num_classes < 3:
        return None
    # With a nonlinear head reach was computed at errors only.
    complete = len(reach.true) == len(evidence.nodes)
    chance, excess = reach.chance, reach.excess.words(100, sign="+", unit=" points")
    # Over one error there is no interval.
    intervals = "" if math.isnan(reach.excess.interval[0]) else " In brackets: 95 % intervals."
    return {
        "low": 100 * chance.low,
        "high": 100 * chance.high,
        "everyone": 100 * reach.true_class_chance.low if complete else None,
        "above": not reach.excess.interval[0] <= 0,
        "words": (
            f"Chance: a class that is neither true nor predicted could win at these errors in "
            f"{chance.words(100, unit=' %')} of the cases; the true class exceeds that by {excess}."
            f" {reach.classes_per_error.words()} of {evidence.num_classes} classes can win per "
            f"error.{intervals}"
        ),
    }


def report_results(
    results: pd.DataFrame, path: str | Path, *, title: str = "Study", made: Any = None
) -> Path:
    """Write the overview of a study's results, without single nodes."""
    if results is None:
        raise InputError("there are no results to show; give those of gnn_repair.read_results")
    PageContext(title=title, made=made, results=results)  # which checks them
    cases = cases_of_results(results)
    if not cases:
        raise InputError("the results hold no test accuracy; run the study first")
    page = {
        "title": title,
        "subtitle": f"{len(cases)} cases; the overview of a study, without single nodes",
        "run": None,
        "study": {"cases": cases, "shown": 0},
    }
    return write_page(page, path, made)


# Runs of a study ----------------------------------------------------------------------------------


def evidence_of(run: Rerun, other: Rerun | None = None) -> Evidence:
    """The evidence of a run at its test nodes, or of another run at the same nodes."""
    model = other or run
    return gather(
        model.exposure,
        run.data.y,
        run.mask("test"),
        member=model.member,
        repairs=_titled(model.repairs),
        edge_index=run.data.edge_index,
    )


def _titled(repairs: Mapping[str, Any]) -> dict[str, Any]:
    """A study's repairs by the titles of their methods."""
    return {title_of(name): repair for name, repair in repairs.items()}


def gather_beside(run: Rerun, other: Rerun) -> Beside:
    """Another run's evidence at the nodes that ``run`` shows, with their parts in that run."""
    evidence = evidence_of(run, other)
    parts = np.full(len(run.data.y), PARTS.index("no part"))
    for name, place in {"train": 0, "val": 1, "test": 3}.items():
        parts[other.mask(name).numpy()] = place
    return Beside(evidence, parts[evidence.nodes], other.split)


def footer_words(protocol: Protocol, command: str = "") -> dict[str, str]:
    """The footer's lines about a study's protocol."""
    seeds = f"{protocol.backbones.seed} (backbone), {protocol.repairs.seed} (repairs)"
    words = {"protocol": protocol.digest, "seed": seeds, "command": command}
    return {name: text for name, text in words.items() if text}


def report_run(
    run: Rerun,
    path: str | Path,
    results: pd.DataFrame | None = None,
    *,
    command: str = "",
    title: str | None = None,
    beside: Mapping[str, Rerun] | None = None,
    single_file: bool | None = True,
) -> Path:
    """Write the page of a run; it says which run it is.

    ``results`` are those of the run's study, ``command`` is shown in the footer, and ``beside``
    holds further runs on the same graph by title, to compare nodes with.
    """
    context = PageContext(
        title=title or f"{run.exposure.origin}, split {run.split}",
        selection="test nodes",
        class_names=run.data.get("class_names"),
        dataset=run.case.dataset,
        backbone=run.case.backbone,
        split=run.split,
        note=run.provenance(),
        made=footer_words(run.settings.protocol, command),
        results=results,
        beside={title: gather_beside(run, other) for title, other in (beside or {}).items()},
    )
    return report(
        run.exposure,
        run.data.y,
        path,
        nodes=run.mask("test"),
        val=run.mask("val"),
        member=run.member,
        repairs=_titled(run.repairs),
        edge_index=run.data.edge_index,
        context=context,
        single_file=single_file,
    )


# The page's words ---------------------------------------------------------------------------------


def write_page(
    content: Mapping[str, Any],
    path: str | Path,
    made: Mapping[str, str] | None = None,
    *,
    single_file: bool | None = True,
) -> Path:
    """Write the page atomically, with parts beside it where it is large."""
    path = check_target(path)
    parts: Mapping[str, Any] = {}
    size = sum(values.nbytes * 4 // 3 for values in content.get("arrays", {}).values())
    large = size > SINGLE_BYTES if single_file is None else not single_file
    if large and content["run"] is not None:
        content, parts = split_content(content, path)
    for name, part in parts.items():
        with replacing(parts_folder(path) / name, folders=True) as temporary:
            temporary.write_text(as_json(part), encoding="ascii")
    footer = {"version": f"gnn-repair {__version__}", **(made or {})}
    with replacing(path) as temporary:
        temporary.write_text(build_page({**content, "made": footer}), encoding="utf-8")
    forget_parts(parts_folder(path), parts)
    return PagePath(path)


def _subtitle(evidence: Evidence, explored: int, omitted: int, note: str) -> str:
    errors, noun = int((~evidence.right).sum()), evidence.noun
    parts = [f"{count_of(len(evidence.nodes), noun)}, {errors:,} of them misclassified"]
    if evidence.unlabelled:
        verb = "is" if evidence.unlabelled == 1 else "are"
        parts.append(f"{count_of(evidence.unlabelled, noun)} without a label {verb} not shown")
    if explored < len(evidence.nodes):
        parts.append(
            f"figures and charts are over all of them, and a sample of {explored:,}, spread evenly "
            "from the largest γ to the smallest, can be opened one by one"
        )
    if omitted:
        parts.append(f"terms of {count_of(omitted, noun)} left out to keep the file small")
    sentences = ["; ".join(parts)]
    if evidence.head is not None:
        undecided = int((~evidence.head.decided).sum())
        verb = "is" if undecided == 1 else "are"
        state = f"{count_of(undecided, noun)} {verb} undecided" if undecided else "all are decided"
        words = evidence.head.words
        sentences.append(f"The messages are followed by a nonlinear head ({words}); {state}")
    return ". ".join(filter(None, [*sentences, note[:1].upper() + note[1:]]))


# Cases beside each other and beside the published numbers -----------------------------------------


def _study(
    evidence: Evidence, words: Mapping[str, Any], results: pd.DataFrame | None
) -> dict[str, Any]:
    """The study's cases with the run's among them; the run as the only case without a study."""
    cases = [] if results is None else cases_of_results(results)
    for index, case in enumerate(cases):
        if all(case[name] == words[name] for name in ("dataset", "backbone")):
            return {"cases": cases, "shown": index}
    names = ("dataset", "backbone", "selection", "split")
    case = case_of_run(evidence, **{name: words[name] for name in names})
    return {"cases": [case, *cases], "shown": 0}


Values = dict[str, list[tuple[int | None, float]]]
"""Values per split, by method or by figure of reach."""


def case_of_run(
    evidence: Evidence,
    dataset: str,
    backbone: str,
    *,
    selection: str = "nodes",
    split: int | None = None,
) -> dict[str, Any]:
    """A run as a case of one split; ``selection`` are the words for its nodes."""
    truth, counts = evidence.true_class, evidence.reach
    right = {item.name: item.predictions == truth for item in evidence.corrections}
    right = {"frozen": evidence.right, **right}
    accuracy: Values = {n: [(split, float(flags.mean()))] for n, flags in right.items()}
    figures = {name: float(getattr(counts, name)) for name in REACH}
    reach: Values = {n: [(split, value)] for n, value in figures.items() if not np.isnan(value)}
    own = {item.name: item for item in evidence.corrections}
    return _case(dataset, backbone, accuracy, reach, own, selection)


def cases_of_results(results: pd.DataFrame) -> list[dict[str, Any]]:
    """Every case of a study's long-form results."""
    rows = results[(results["part"] == "test") & results["value"].notna()].sort_values("split")
    cases = []
    for (dataset, backbone), group in rows.groupby(["dataset", "backbone"], sort=True):
        accuracy = _group_values(group[group["metric"] == "accuracy"], "method")
        if "frozen" in accuracy:
            reach = group[group["metric"].isin((*REACH, "chance_reach"))]
            cases.append(
                _case(str(dataset), str(backbone), accuracy, _group_values(reach, "metric"), {})
            )
    return cases


def _group_values(rows: pd.DataFrame, column: str) -> Values:
    return {
        str(name): [(int(s), float(v)) for s, v in zip(part["split"], part["value"], strict=True)]
        for name, part in rows.groupby(column, sort=False)
    }


def _case(
    dataset: str,
    backbone: str,
    accuracy: Values,
    reach: Values,
    own: Mapping[str, Correction],
    selection: str = "test nodes",
) -> dict[str, Any]:
    """A case as the page holds it: accuracies and reach in percent, support in terms.

    ``own`` are the repairs of the page's own run, which have the names that they were given.
    """
    paper = {name: published_cell(name, backbone, dataset) for name in (*REACH, *accuracy)}
    paper = {name: value for name, value in paper.items() if not math.isnan(value)}
    methods = [
        {
            "key": name,
            "title": own[name].title if name in own else title_of(name),
            "kind": own[name].kind if name in own else None,
            "values": [100 * value for _, value in values],
            "splits": [split for split, _ in values],
            "paper": paper.get(name),
        }
        for name, values in {"frozen": accuracy["frozen"], **accuracy}.items()
    ]
    shares = {
        name: [value if name == "support" else 100 * value for _, value in values]
        for name, values in reach.items()
    }
    case = {"dataset": dataset, "backbone": backbone, "on": selection, "methods": methods}
    return case | {"reach": shares, "paper": {n: paper[n] for n in REACH if n in paper}}


# The page itself: one HTML file, nothing outside it -----------------------------------------------

SCRIPTS = (
    *("run.js", "words.js", "draw.js", "export.js", "charts.js", "story.js", "overview.js"),
    *("plane.js", "picture.js", "node.js", "terms.js", "graph.js", "compare.js", "list.js"),
    *("explorer.js", "main.js"),
)
"""Plain scripts that share one scope, in the order in which they are concatenated."""


def build_page(content: Mapping[str, Any]) -> str:
    """The whole page around ``content`` (title, subtitle, run, arrays, study)."""
    looks = {
        name: {**asdict(method.look), "message_set": method.message_set}
        for name, method in METHODS.items()
    }
    parts = {
        "TITLE": html.escape(str(content["title"])),
        "STYLE": _read("style.css"),
        "SCRIPT": joined_scripts(),
        # Only a page with parts makes requests, and only for files beside it.
        "CONNECT": "; connect-src 'self'" if content.get("parts") else "",
        "PAYLOAD": script_safe({**content, "looks": looks}),
    }
    # Split once, so that a marker inside a title or a payload is never replaced.
    pieces = _read("page.html").split("@@")
    pieces[1::2] = [parts[name] for name in pieces[1::2]]
    return "".join(pieces)


def joined_scripts() -> str:
    """The page's whole script."""
    return "\n".join(_read(name) for name in SCRIPTS)


def _read(name: str) -> str:
    folder = resources.files("gnn_repair.reporting")
    return folder.joinpath("page", name).read_text(encoding="utf-8")
