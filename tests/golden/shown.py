"""What users see: pages, diagnoses, figures, and what the command line prints, of small worlds.

The worlds are computed in double precision, so that they are the same on every processor, and hold
what is easily counted wrongly: members with masks of their own, unlabelled nodes, ties, nodes and
numbers that are missing, answers that are undecided, names that are markup.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager, redirect_stderr
from dataclasses import replace
from functools import cache, partial
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from matplotlib.figure import Figure
from torch_geometric.data import Batch

import gnn_repair as gr
from gnn_repair.reporting import figures, payload, plots, writing
from gnn_repair.reporting.payload import Beside
from gnn_repair.reporting.writing import PageContext, report_results
from gnn_repair.study import PAPER, TABLES, Run, Store, override, read_results
from tests.golden import galleries
from tests.golden.record import numbers
from tests.helpers.models import pool_models, typed_models
from tests.helpers.oracle import head_cases
from tests.helpers.repair import ladders
from tests.helpers.report import pages, report_worlds
from tests.helpers.study.planted_records import random_records

Entries = dict[str, Callable[[], Any]]
MEMBER, SENT = 1, 200
"""The member that is shown, and nodes of the page of which a sample can be opened."""


def tidy(tree: Any) -> Any:
    """JSON with rounded numbers."""
    if isinstance(tree, float):
        return numbers([tree], 9)[0] if tree == tree else None
    if isinstance(tree, dict):
        return {str(key): tidy(value) for key, value in tree.items()}
    return [tidy(value) for value in tree] if isinstance(tree, list | tuple) else tree


NUMBER = re.compile(r"(?<![\w.])-?\d+(\.\d+)?(e[-+]?\d+)?(?![\w.])")


def sums(values: Any) -> list[Any]:
    """How many there are, how many are none, and two sums that every entry and its place decide."""
    flat = np.asarray(values).ravel().astype(float)
    gone, weights = ~np.isfinite(flat), np.cos(np.arange(len(flat)))
    kept = np.where(gone, 0.0, flat)
    return numbers([len(flat), gone.sum(), kept.sum(), kept @ weights, np.abs(kept).sum()], 7)


def digest(text: str) -> str:
    return f"{text.count(chr(10))} lines, {hashlib.sha256(text.encode()).hexdigest()[:16]}"


def of_text(text: str) -> list[Any]:
    """Everything but the numbers of a text, and sums of these, which processors round differently.

    What is rounding alone counts as zero.
    """
    values = np.array([float(match[0]) for match in NUMBER.finditer(text)])
    values[np.abs(values) < 1e-12] = 0.0
    return [digest(NUMBER.sub("#", text)), sums(values)]


# Pages --------------------------------------------------------------------------------------------


def of_page(path: Path) -> dict[str, Any]:
    """Sums of every array of a page and of its parts, and everything else that it holds."""
    content = pages.payload_of(path)
    content["made"].pop("version")
    content.pop("looks")
    held = {"": content.pop("arrays", {})}
    held |= {f"beside {b['title']}: ": b.pop("arrays") for b in content.get("beside", [])}
    folder = payload.parts_folder(path)
    for part in sorted(folder.iterdir()) if folder.is_dir() else ():
        number = part.stem.split("-")[1]
        held[f"part {number}: "] = json.loads(part.read_text(encoding="ascii"))
    if content.get("parts"):
        content["parts"].pop("digest")  # of rounded numbers
    arrays = {
        f"{where}{name}, {entry['type']}": sums(pages.decoded(entry))
        for where, own in held.items()
        for name, entry in own.items()
    }
    return {"precision": "float32", "arrays": arrays, "words": tidy(content)}


def page(call: Callable[[Path], Any]) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "page.html"
        call(path)
        return of_page(path)


@cache
def affine(classes: int = 4, nodes: int = 40) -> dict[str, Any]:
    """Two members with nodes of their own, some of them unlabelled, and a graph."""
    exposure, y = report_worlds.make_exposure(nodes, classes, groups=2, members=2)
    y = y.clone()
    y[[5, 6, 11]] = -1
    place = torch.arange(nodes).unsqueeze(1) + torch.arange(2) * 7
    edges = torch.randint(nodes, (2, 3 * nodes), generator=torch.Generator().manual_seed(2))
    return {
        "exposure": exposure, "y": y, "nodes": place % 3 == 0, "val": place % 3 == 1,
        "edge_index": edges, "member": MEMBER,
    }  # fmt: skip


def own_logits(world: dict[str, Any], best: str = "") -> dict[str, Any]:
    """Repairs of every kind; one of them is right about validation nodes of a member alone."""
    exposure, y = world["exposure"], world["y"]
    generator = torch.Generator().manual_seed(3)
    loose = torch.randn(exposure.num_nodes, exposure.num_classes, generator=generator).double()
    found = {"reweighting": report_worlds.Tilted(), "set-translation": report_worlds.Moved()}
    for member in range(2):
        knows = loose.clone()
        rows = world["val"][:, member] & (y >= 0)
        knows[rows, y[rows]] += 9
        found[f"<i>{member}</i>"] = knows
    return found


def results() -> Any:
    with tempfile.TemporaryDirectory() as folder:
        return read_results(stored(Path(folder), 0).root, PAPER.digest)


def _affine_page(path: Path, **options: Any) -> None:
    world = affine()
    other = gr.reporting.gather(
        world["exposure"], world["y"], world["nodes"][:, MEMBER], member=0,
        repairs=own_logits(world), edge_index=world["edge_index"],
    )  # fmt: skip
    kinds = np.arange(len(other.nodes)) % 4
    context = PageContext(
        dataset="cora", backbone="sgc", split=4, note="a note", results=results(),
        class_names=report_worlds.NASTY, made={"command": "gnn-repair <report>"},
        beside={"split <0>": Beside(other, kinds, 0), "again": other},
    )  # fmt: skip
    gr.report(**world, path=path, repairs=own_logits(world), context=context, **options)


def _sampled_page(path: Path) -> None:
    """Of more classes than are drawn."""
    exposure, y = report_worlds.make_exposure(SENT, 45, groups=2)
    repairs = {"reweighting": report_worlds.Tilted(), "set_translation": report_worlds.Moved()}
    with patch.object(payload, "EXPLORED_BYTES", 60_000):
        gr.report(exposure, y, path, repairs=repairs)


def _gaps_page(path: Path, nonlinear: bool) -> None:
    """Answers that are missing or undecided and ties, of right nodes and of wrong ones alike."""
    exposure, y = behind_a_head() if nonlinear else report_worlds.make_exposure(groups=2)
    if not nonlinear:  # logits of thousands
        names = ("contributions", "fixed_logits", "frozen_logits")
        exposure = replace(exposure, **{n: 1e3 * getattr(exposure, n) for n in names})
    else:  # half of the nodes are right
        y = torch.where(torch.arange(24) % 4 == 0, exposure.frozen_logits[0].argmax(1), y)
    held = gr.reporting.gather(exposure, y, all_classes=True)
    place, changes = np.arange(len(held.nodes)), held.classes
    margin = np.select([place % 5 == 1, place % 7 == 3], [np.nan, 5e-8], held.margin)
    assert changes is not None
    share = np.where(place[:, None] % 4 == 1, np.nan, changes.share)
    decided = changes.decided & (place[:, None] % 6 != 2) & (place[:, None] + np.arange(4) != 8)
    classes = replace(changes, share=share, decided=decided)
    head = held.head
    if head is not None:
        head = replace(head, verdict=place % 3, bound=np.where(place == 1, 0.0, head.bound))
    torn = replace(held, margin=margin, classes=classes, head=head)
    with patch.object(writing, "gather", lambda *_, **__: torn):
        gr.report(exposure, y, path)


def _parts_page(path: Path) -> None:
    world = affine()
    with patch.object(payload, "PART_BYTES", 2_000):
        gr.report(**world, path=path, repairs=own_logits(world), single_file=False)


def _two_classes(path: Path) -> None:
    names, own = [f"v{i}" for i in range(40)], [report_worlds.Moved(seed) for seed in range(4)]
    repairs = {"mine": report_worlds.Tilted()} | {f"own {j}": one for j, one in enumerate(own)}
    gr.report(**affine(2), path=path, selection="odd ones", node_names=names, repairs=repairs)


@cache
def behind_a_head() -> tuple[Any, Any]:
    """Ten nodes, of which one is not decided; two groups, no model that could be run."""
    exposure = replace(head_cases.tailed("opaque", 4, 2), replay=None)
    return exposure.restrict(torch.arange(0, 20, 2)), torch.arange(24) % 4


def _head_page(path: Path) -> None:
    exposure, y = behind_a_head()
    with patch.object(payload, "EXPLORED_BYTES", 900):  # of some nodes alone
        gr.report(exposure, y, path, repairs={"mine": torch.eye(4).repeat(6, 1)})


@cache
def graphs() -> tuple[Any, Any, Any]:
    torch.manual_seed(4)
    layers, count = pool_models.LAYERS[next(iter(pool_models.LAYERS))](), pool_models.CLASSES
    head = torch.nn.Linear(2 * pool_models.WIDTH, count)
    model = pool_models.Kept(layers, head, pool_models.global_add_pool).double().eval()
    batch = pool_models.batch_of()
    exposure = gr.expose(model, batch)
    return exposure, torch.arange(exposure.num_recipients) % count, batch


def _graph_page(path: Path) -> None:
    exposure, y, batch = graphs()
    edges = batch.edge_index if isinstance(batch, Batch) else None
    gr.report(exposure, y, path, edge_index=edges)


@cache
def typed() -> tuple[Any, Any]:
    torch.manual_seed(1)
    exposure = gr.expose(*typed_models.build("HeteroConv by sum"))
    y = torch.arange(exposure.num_nodes) % exposure.num_classes
    return exposure, y


def _typed_page(path: Path) -> None:
    exposure, y = typed()
    gr.report(exposure, y, path)


def _ladder_page(path: Path) -> None:
    exposure, y, fitted = ladders.by_hand()
    val, own = torch.arange(len(y)) % 3 == 1, {"mine": exposure.frozen_logits[2]}
    gr.report(exposure, y, path, member=1, val=val, repairs={"evidence_ladder": fitted, **own})


def _extreme_page(path: Path, kind: str) -> None:
    """One error alone; a model that is always right; a repair that spoils; a name of a formula."""
    exposure, y = report_worlds.make_exposure(groups=1)
    said = exposure.frozen_logits[0].argmax(1)
    spoilt = exposure.frozen_logits[0].clone()
    spoilt[(said == y).nonzero().view(-1)[:2]] *= -1
    shifts = {f"{kind}_translation": report_worlds.Moved(ord(kind[0])) for kind in ("node", "set")}
    options: dict[str, Any] = {
        "one": {"nodes": (said != y).nonzero().view(-1)[:1]},
        "right": {"y": said, "node_names": [f"=a{i}" for i in range(40)]},
        "spoilt": {
            "repairs": {"mine": spoilt, **shifts},
            "class_names": ['a "b" "c"', "+d", "@e,f", "-g"],
        },
    }
    gr.report(path=path, **{"exposure": exposure, "y": y, **options[kind]})


PAGES: dict[str, Callable[[Path], Any]] = {
    **{kind: partial(_extreme_page, kind=kind) for kind in ("one", "right", "spoilt")},
    "affine": _affine_page, "sampled": _sampled_page, "parts": _parts_page,
    "two classes": _two_classes, "head": _head_page, "graphs": _graph_page,
    "types": _typed_page, "ladder": _ladder_page,
    "gaps": partial(_gaps_page, nonlinear=False), "gaps, head": partial(_gaps_page, nonlinear=True),
    "study": lambda path: report_results(results(), path, title="A <study>"),
}  # fmt: skip


def of_pages() -> Entries:
    """The whole payload of pages of every kind."""
    return {name: partial(page, call) for name, call in PAGES.items()}


# Diagnoses and what repairs say of themselves -----------------------------------------------------


def diagnoses() -> Iterator[tuple[str, Any]]:
    """By the kind of model."""
    world = affine()
    given = {"y": world["y"], "nodes": world["nodes"]}
    yield "members", gr.diagnose(world["exposure"], **given)
    alone = affine(2)
    yield "two classes", gr.diagnose(alone["exposure"].member(0), y=alone["y"])
    for name, world in (("head", behind_a_head()), ("graphs", graphs()[:2]), ("types", typed())):
        yield name, gr.diagnose(world[0], y=world[1])
    exposure, y = report_worlds.make_exposure(12, 3, members=2)
    truth = torch.nn.functional.one_hot(y, 3).double()
    truth[2, 1] = torch.nan
    yield "labels", gr.diagnose(replace(exposure, outputs="labels"), y=truth)
    values = exposure.frozen_logits[0] + 0.3 * truth
    yield "values", gr.diagnose(replace(exposure, outputs="values"), y=values)
    name = next(iter(galleries.link_models.EXACT))
    links = galleries.seeded(partial(galleries.links, name, "source"), 2)
    yield "links", gr.diagnose(links, y=torch.arange(len(links.links.T)) % 2)


def of_diagnoses() -> Entries:
    """Story, sentences, rows and files."""
    found: Entries = {name: partial(_diagnosis, name) for name in DIAGNOSED}
    return found | {"a ladder": _ladder_words}


DIAGNOSED = ("members", "two classes", "head", "graphs", "types", "labels", "values", "links")


@cache
def _made() -> dict[str, Any]:
    return dict(diagnoses())


def diagnosed(kind: str) -> Any:
    return _made()[kind]


def _diagnosis(kind: str) -> Any:
    found = diagnosed(kind)
    frame = found.to_frame()
    with tempfile.TemporaryDirectory() as folder:
        header = found.to_csv(Path(folder) / "rows.csv").read_text(encoding="utf-8")
    rows = frame.iloc[[0, len(frame) // 2, -1]]
    members = rows["member"] if "member" in frame else [0] * 3
    subjects = range(3) if kind == "links" else rows.iloc[:, frame.columns.get_loc("true") - 1]
    if kind in ("labels", "values"):
        subjects = rows["node"]
    asked = dict.fromkeys(zip(map(int, subjects), map(int, members), strict=True))
    columns = {
        name: sums(column) if column.dtype.kind in "fiub" else _texts(column)
        for name, column in frame.items()
    }
    said = [line for one in asked for line in found.explain(*one).split("\n")]
    lines = header.split("\n")
    return {
        "columns": columns,
        "words": [*str(found).split("\n"), *said, lines[0], f"{len(lines)} lines"],
    }


def _texts(column: Any) -> str:
    return digest("\n".join(map(str, column)))


def _ladder_words() -> Any:
    exposure, _, fitted = ladders.by_hand()
    frame = fitted.findings().to_frame()
    columns = {n: sums(c) for n, c in frame.items() if c.dtype.kind in "fiub"}
    own = fitted.to_frame()
    return {
        "columns": columns | {n: sums(c.astype(float)) for n, c in own.items()},
        "logits": numbers(fitted.member_logits(exposure)[:, :6], 7),
        "held out": {n: numbers(v, 9) for n, v in fitted.out_of_fold.items()},
        "precision": "float32",
        "words": [
            *str(fitted).split("\n"), *str(fitted.member(1)).split("\n"), *fitted.chosen,
            *map(str, fitted.findings().rows), fitted.advice,
        ],
    }  # fmt: skip


# Figures ------------------------------------------------------------------------------------------


def of_axes(draw: Callable[[Any], Any]) -> Any:
    """The data of what is drawn, and the texts."""
    axes = Figure().add_subplot()
    draw(axes)
    lines = [sums(line.get_xydata()) for line in axes.lines]
    bars = [[*p.get_extents().bounds] for p in axes.patches]
    bars = [sums(axes.transData.inverted().transform(np.reshape(bar, (2, 2)))) for bar in bars]
    texts = [t.get_text() for t in (*axes.get_xticklabels(), *axes.get_yticklabels(), *axes.texts)]
    segments = [sums(np.concatenate(c.get_segments())) for c in axes.collections
                if hasattr(c, "get_segments") and len(c.get_segments())]  # fmt: skip
    legend = axes.get_legend()
    words = [axes.get_title(), axes.get_xlabel(), axes.get_ylabel(), *texts]
    words += [] if legend is None else [t.get_text() for t in legend.get_texts()]
    return {
        "precision": "float32", "lines": lines, "bars": bars, "segments": segments, "words": words
    }  # fmt: skip


def of_figures() -> Entries:
    """Every drawing, of every kind of evidence."""
    draws: dict[str, Any] = {
        name: getattr(figures, f"draw_{name}")
        for name in ("accuracy", "moves", "margins", "degree", "homophily", "support")
    }
    found: Entries = {}
    for kind in ("affine", "head", "graphs"):
        for name, draw in draws.items():
            call = partial(_drawn, draw, kind)
            found[f"{name}, {kind}"] = partial(of_axes, call)
    for kind in ("affine", "two classes", "head", "graphs"):
        found[f"node, {kind}"] = partial(of_axes, partial(_polytope, kind))
    kinds = ("members", "two classes", "head", "labels", "values", "links")
    found |= {f"plot, {k}": partial(of_axes, partial(_plot, k)) for k in kinds}
    found["rungs"] = partial(of_axes, lambda ax: plots.rungs(ladders.by_hand()[2], ax=ax))
    return found


@cache
def gathered(kind: str) -> Any:
    world = affine(2 if kind == "two classes" else 4)
    if kind in ("affine", "two classes"):
        own = {name: value for name, value in world.items() if name != "val"}
        repairs = own_logits(world) if kind == "affine" else {"mine": report_worlds.Tilted()}
        return gr.reporting.gather(**own, repairs=repairs)
    exposure, y = behind_a_head() if kind == "head" else graphs()[:2]
    repairs = {"mine": torch.cos(torch.arange(exposure.num_nodes * exposure.num_classes).double())}
    shape = exposure.num_nodes, exposure.num_classes
    return gr.reporting.gather(exposure, y, repairs={"mine": repairs["mine"].view(shape)})


def _drawn(draw: Any, kind: str, axes: Any) -> None:
    draw(axes, gathered(kind))


def _polytope(kind: str, axes: Any) -> None:
    names = [f"${c}$" for c in range(gathered(kind).num_classes)]
    figures.draw_polytope(axes, gathered(kind), 1, names)


def _plot(kind: str, axes: Any) -> None:
    diagnosed(kind).plot(axes)


# The command line ---------------------------------------------------------------------------------

OTHER = override(PAPER, ["backbones.hidden=64"])
MODELS = """
import torch
from tests.helpers.repair.toy_exposures import net, toy_graph

def made(seed=0):
    data = toy_graph()
    return net(seed), data, data.test_mask[:, 0]

def other():
    return made(2)

def everyone():
    return made()[:1] + (made()[1].clone(), torch.arange(25))
"""


def stored(folder: Path, seed: int) -> Store:
    """Two protocols, a failure, cases of one's own."""
    held = Store(folder / f"store-{seed}")
    for protocol, number in ((PAPER, seed), (OTHER, seed + 7)):
        held.begin(protocol)
        for record in random_records(number):
            held.put(replace(record, protocol=protocol.digest))
    held.put_failure(PAPER.digest, Run("cora", "gat", 1), "a planted fault", "Traceback")
    return held


@contextmanager
def a_folder() -> Iterator[Path]:
    """With stores and a module of models, as the working directory of a terminal of 100 letters."""
    wide = patch.dict(os.environ, {"COLUMNS": "100"})
    with tempfile.TemporaryDirectory() as name, chdir(name), wide:
        (Path(name) / "golden_models.py").write_text(MODELS)
        stored(Path(name), 0)
        try:
            yield Path(name)
        finally:
            sys.modules.pop("golden_models", None)


def printed(*arguments: str) -> tuple[str, str]:
    """What a command prints, with its exit code, and what it says beside that."""
    from tests.golden.answers import printed as plain

    beside = StringIO()
    with redirect_stderr(beside):
        return plain(*arguments), beside.getvalue()


GRID = ("--datasets", "cora,mine", "--backbones", "gcn,gat", "--splits", "0-3")
LINES: dict[str, tuple[tuple[str, ...], ...]] = {
    "status": tuple(
        ("study", "status", "--store", "store-0", *GRID, *more)
        for more in ((), ("--format", "json"), ("--set", "backbones.hidden=64"),
                     ("--methods", "oracle,refit_head", "--format", "json"),
                     ("--protocol", "independent", "--format", "json"))
    ),
    "one protocol": (
        ("study", "pack", "one.jsonl", "--store", "store-0", "--digest", OTHER.digest),
        *(("study", "status", "--store", "one.jsonl", *GRID, "--format", "json", *more)
          for more in ((), ("--set", "backbones.hidden=32"), ("--protocol", "paper"))),
        ("study", "tables", "controls", "--store", "one.jsonl", "--format", "csv"),
        ("study", "tables", "controls", "--store", "one.jsonl", "--set", "backbones.hidden=32"),
    ),
    "merge": (
        ("study", "pack", "all.jsonl", "--store", "store-0"),
        ("study", "merge", "all.jsonl", "store-0", "--store", "new"),
        ("study", "export", "new.csv", "--store", "new"),
        ("study", "pack", "new.jsonl", "--store", "new"),
    ),
    "export": (
        ("study", "export", "all.csv", "--store", "store-0"),
        ("study", "export", "some.csv", "--store", "store-0", "--digest", OTHER.digest),
    ),
    "diagnose": (
        ("diagnose", "golden_models.py:made", "--csv", "rows.csv"),
        ("diagnose", "golden_models.py:made", "--format", "json"),
        ("diagnose", "golden_models.py:everyone"),
    ),
    "check": (
        ("check", "golden_models.py:made", "--baseline", "before.json", "--save"),
        ("check", "golden_models.py:made", "--baseline", "before.json"),
        *(("check", "golden_models.py:other", "--baseline", "before.json", *more)
          for more in ((), ("--format", "json"), ("--tolerance", "0.5"), ("--tolerance", "90"))),
        ("check", "golden_models.py:everyone", "--baseline", "before.json"),
        ("check", "golden_models.py:other", "--baseline", "better.json", "--save"),
        *(("check", "golden_models.py:made", "--baseline", "better.json", *more)
          for more in ((), ("--tolerance", "16.6"), ("--tolerance", "16.7"))),
    ),
    "data": (("data", "list", "--format", "json", "--root", "absent"),
             ("data", "list", "--root", "absent")),
    "reports": (
        ("report", "--store", "store-0", "--out", "a.html"),
        ("report", "--store", "store-0", "--out", "b.html", "--digest", OTHER.digest),
        ("report", "--store", "store-0", "--out", "c.html", "--dataset", "mine"),
        ("report", "--store", "store-0", "--out", "d.html", "--backbone", "own_net"),
        ("report", "--store", "store-0", "--out", "e.html", "--dataset", "lost"),
    ),
}  # fmt: skip
"""Lines of one folder each, one after the other."""
FORMS = {
    "markdown": (), "csv": (), "json": (), "latex": (), "table": (),
    "latex, spread": ("--spread",), "markdown, ours": ("--no-published",),
    "table, ours": ("--no-published", "--no-spread"), "csv, other": ("--digest", OTHER.digest),
}  # fmt: skip


def of_lines() -> Entries:
    """Every command that trains nothing."""
    found: Entries = {name: partial(_lines, name) for name in LINES}
    return found | {f"tables, {form}": partial(_tables, form) for form in FORMS}


def _lines(name: str) -> Any:
    words = []
    with a_folder() as folder:
        for line in LINES[name]:
            out, beside = printed(*line)
            if "json" in line and out[:1] in "[{":
                out = json.dumps(tidy(json.loads(out.split("\nexit code")[0])))
            words += [f"$ {' '.join(line)}", *_short(out, folder), *_short(beside, folder)]
        files = {
            path.name: _file(path)
            for path in sorted(folder.glob("*.*"))
            if path.suffix in (".csv", ".jsonl", ".html")
        }
    return {"precision": "float32", "files": files, "words": words}


def _short(text: str, folder: Path) -> list[str]:
    lines = text.replace(str(folder), "HERE").rstrip().split("\n")
    whole = len(text) < 3000
    return [line.rstrip() for line in lines] if whole else [lines[0][:200], digest(text)]


def _file(path: Path) -> Any:
    if path.suffix == ".html":
        content = pages.payload_of(path)
        content.pop("looks")
        content["made"].pop("version")
        return digest(json.dumps(tidy(content), sort_keys=True))
    return of_text(path.read_text(encoding="utf-8"))


def _tables(form: str) -> Any:
    with a_folder():
        kind = form.split(",")[0]
        text, _ = printed(
            "study", "tables", *TABLES, "--store", "store-0", "--format", kind, *FORMS[form]
        )
    held: dict[str, Any] = {"sha256": digest(text)}
    if form == "csv":
        held["text"] = text.split("\n")[:400]
    return held


PARTS: dict[str, Callable[[], Entries]] = {
    "pages": of_pages, "diagnoses": of_diagnoses, "figures": of_figures, "lines": of_lines,
}  # fmt: skip
