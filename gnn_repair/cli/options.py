"""What commands are told: lists as people type them, what the shell offers, options of a study."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gnn_repair.errors import InputError
from gnn_repair.suggestion import suggestion

if TYPE_CHECKING:
    from gnn_repair.results.protocol import Protocol

# Lists as people type them ------------------------------------------------------------------------


def names(text: str, known: Iterable[str], kind: str) -> list[str]:
    """``"gcn,gat"`` or ``"all"`` as a list of known names, in the order given."""
    available = list(known)
    chosen = available if text == "all" else [name.strip() for name in text.split(",")]
    for name in chosen:
        if name not in available:
            raise InputError(f"unknown {kind} {name!r:.80}; {suggestion(name, available)}")
    return chosen


MOST = 10_000
"""Numbers in a list; more are a typing error."""
_PART = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)


def numbers(text: str) -> list[int]:
    """``"0-3,7"`` as [0, 1, 2, 3, 7]."""
    chosen: list[int] = []
    for part in text.split(","):
        match = _PART.fullmatch(part.strip())
        if match is None:
            raise InputError(f"{text[:80]!r} is not a list of numbers such as 0-3,7")
        first = int(match[1])
        last = int(match[2] or first)
        if last < first:
            raise InputError(f"{part.strip()} runs backwards; write {last}-{first}")
        if len(chosen) + last - first >= MOST:
            raise InputError(f"{text[:80]!r} names more than {MOST:,} numbers; name fewer")
        chosen.extend(range(first, last + 1))
    return chosen


# What the shell offers when Tab is pressed (gnn-repair --install-completion) ----------------------


def _datasets() -> Iterable[str]:
    from gnn_repair.catalog import DATASETS

    return DATASETS


def _backbones() -> Iterable[str]:
    from gnn_repair.published import TITLES

    return TITLES


def _methods() -> Iterable[str]:
    from gnn_repair.methods import METHODS

    return ["oracle", *METHODS]


def one_of(names: Callable[[], Iterable[str]], *words: str) -> Callable[[str], list[str]]:
    """Offers the names, and words that stand for several of them."""

    def offer(incomplete: str) -> list[str]:
        return [name for name in (*names(), *words) if name.startswith(incomplete)]

    return offer


def list_of(names: Callable[[], Iterable[str]], *words: str) -> Callable[[str], list[str]]:
    """The same for the last name of a comma-separated list; none is offered twice."""

    def offer(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        chosen = before.split(",")
        offered = names() if comma else (*names(), *words)
        return [
            f"{before}{comma}{name}"
            for name in offered
            if name.startswith(last) and name not in chosen
        ]

    return offer


offer_dataset = one_of(_datasets)
offer_backbone = one_of(_backbones)
offer_datasets = list_of(_datasets, "paper", "all")
offer_backbones = list_of(_backbones, "paper", "all")
offer_methods = list_of(_methods, "all")
offer_protocol = one_of(lambda: ("paper", "independent"))


# Where results lie, what of the grid, which settings ----------------------------------------------

StoreOption = Annotated[
    Path, typer.Option("--store", help="Folder of results; where only read, also a packed file.")
]
DigestOption = Annotated[str | None, typer.Option(help="Digest of one protocol; else all.")]
DatasetsOption = Annotated[
    str,
    typer.Option(
        "--datasets",
        help="Comma-separated; 'paper' is the paper's eight; your own: FILE.py:NAME.",
        autocompletion=offer_datasets,
    ),
]
BackbonesOption = Annotated[
    str,
    typer.Option(
        "--backbones",
        help="Comma-separated; 'paper' is the paper's eight; your own: FILE.py:NAME.",
        autocompletion=offer_backbones,
    ),
]
SplitsOption = Annotated[str, typer.Option("--splits", help="Such as 0-9 or 0,3.")]
MethodsOption = Annotated[
    str,
    typer.Option(
        "--methods",
        help="Comma-separated, of oracle and the repairs; all: without the ladder's.",
        autocompletion=offer_methods,
    ),
]
ProtocolOption = Annotated[
    str | None,
    typer.Option(
        "--protocol",
        help="paper, independent, or a TOML file of settings that differ.",
        autocompletion=offer_protocol,
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", help="One setting, such as backbones.hidden=64; may be repeated."),
]


def chosen_protocol(named: str | None, assignments: Sequence[str] | None) -> Protocol:
    from gnn_repair.results.protocol import PAPER, PROTOCOLS, override, read_protocol

    base = PAPER if named is None else PROTOCOLS.get(named) or read_protocol(named)
    return override(base, assignments or ())


def only_digest(store: Any, protocol: Protocol, named: bool) -> str:
    """The protocol to show: the named one, else the only one, else the paper's."""
    found = store.digests()
    if named or protocol.digest in found or len(found) != 1:
        if not named and protocol.digest not in found and found:
            raise InputError(f"the store holds several protocols; choose --digest {found[0]} …")
        return protocol.digest
    return str(found[0])
