"""What is evaluated on a frozen backbone: the oracle, and every method that is declared.

Declarations are plain text (:mod:`gnn_repair.repair.methods`), so that tables can be made without
loading any of the classes.
"""

from __future__ import annotations

from collections.abc import Iterable

from gnn_repair.errors import InputError
from gnn_repair.repair.methods import METHODS as METHODS
from gnn_repair.repair.methods import Method as Method
from gnn_repair.suggestion import suggestion

ORACLE = "oracle"
"""The exact-mass oracle on validation and test nodes; asked for like a method."""


def chosen_methods(names: Iterable[str] | None = None) -> tuple[str, ...]:
    """Known names in the order of the tables, the oracle first.

    Unless given, those that run by default: not the ladder and its controls, which cost more than
    all others together.
    """
    known = (ORACLE, *METHODS)
    if isinstance(names, str) or not (names is None or isinstance(names, Iterable)):
        raise InputError(f"methods is {names!r:.80}; give a list of names, of {', '.join(known)}")
    usual = (ORACLE, *(name for name, method in METHODS.items() if method.by_default))
    wanted = usual if names is None else tuple(names)
    for name in wanted:
        if name not in known:
            raise InputError(f"unknown method {name!r:.80}; {suggestion(str(name), known)}")
    return tuple(name for name in known if name in wanted)
