"""What the commands of a study are told: where results lie, what of the grid, which settings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gnn_repair.cli import completion
from gnn_repair.errors import InputError

if TYPE_CHECKING:
    from gnn_repair.study.protocol import Protocol

StoreOption = Annotated[
    Path, typer.Option("--store", help="Folder of results; where only read, also a packed file.")
]
DigestOption = Annotated[str | None, typer.Option(help="Digest of one protocol; else all.")]
DatasetsOption = Annotated[
    str,
    typer.Option(
        "--datasets",
        help="Comma-separated; 'paper' is the paper's eight.",
        autocompletion=completion.datasets,
    ),
]
BackbonesOption = Annotated[
    str,
    typer.Option(
        "--backbones",
        help="Comma-separated; 'paper' is the paper's eight; your own: FILE.py:NAME.",
        autocompletion=completion.backbones,
    ),
]
SplitsOption = Annotated[str, typer.Option("--splits", help="Such as 0-9 or 0,3.")]
MethodsOption = Annotated[
    str,
    typer.Option(
        "--methods",
        help="Comma-separated, of oracle and the repairs; all: without the ladder's.",
        autocompletion=completion.methods,
    ),
]
ProtocolOption = Annotated[
    str | None,
    typer.Option(
        "--protocol",
        help="paper, independent, or a TOML file of settings that differ.",
        autocompletion=completion.protocol,
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", help="One setting, such as backbones.hidden=64; may be repeated."),
]


def chosen_protocol(named: str | None, assignments: Sequence[str] | None) -> Protocol:
    from gnn_repair.study.protocol import PAPER, PROTOCOLS, override, read_protocol

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
