"""What recipients and senders are called, where a graph has more than one kind of node.

Sources are numbered through all kinds of sender, one kind after another, so that one number names
one sender everywhere. The recipients' own kind comes first where it sends at all: its numbers are
then node numbers, as in a graph of one kind.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnn_repair.errors import InputError


@dataclass(frozen=True)
class NodeNames:
    """Names of recipients, senders and groups; as they stand here: of a graph of one kind."""

    recipient: str = "node"
    """What a recipient is, such as ``paper``."""
    senders: tuple[tuple[str, int], ...] = ()
    """Every kind of sender and how many there are; empty: the recipients themselves."""
    groups: tuple[str, ...] = ()
    """What the groups are called, such as ``author writes paper``; empty: by number."""

    @property
    def typed(self) -> bool:
        """Whether there is more than one kind of node."""
        return bool(self.senders)

    def count(self, nodes: int) -> int:
        """How many senders there are, of N recipients."""
        return sum(size for _, size in self.senders) if self.senders else nodes

    def own(self, nodes: int) -> int:
        """How many of the senders are the N recipients themselves; they come first."""
        if not self.senders:
            return nodes
        kind, size = self.senders[0]
        return size if kind == self.recipient else 0

    def node(self, number: Any) -> str:
        """Such as ``paper 12``."""
        return f"{self.recipient} {number}"

    def sender(self, source: Any) -> str:
        """Who sent a term's message, such as ``author 3``; −1 is nobody."""
        if source < 0:
            return "no message"
        kind, number = self.split(np.array([source]))
        return f"{kind[0]} {number[0]}"

    def group(self, number: Any) -> str:
        """Such as ``author writes paper``, or ``group 2``."""
        return self.groups[number] if self.groups else f"group {number}"

    def split(self, sources: NDArray[Any]) -> tuple[NDArray[np.str_], NDArray[np.int64]]:
        """The kind of each source and its number within that kind; nobody stays −1."""
        if not self.senders:
            return np.full(len(sources), self.recipient), sources.astype(np.int64)
        kinds = np.array([kind for kind, _ in self.senders])
        starts = np.array([0, *accumulate(size for _, size in self.senders)])
        place = np.searchsorted(starts, sources, side="right") - 1
        place = place.clip(0, len(kinds) - 1)
        return kinds[place], np.where(sources < 0, -1, sources - starts[place])

    def with_groups(self, groups: tuple[str, ...]) -> NodeNames:
        """The same, with the groups' names where there are several kinds of node."""
        return replace(self, groups=groups) if self.typed else self

    # Files -------------------------------------------------------------------------------------

    def header(self) -> dict[str, Any]:
        """As it stands in a file."""
        return {
            "recipient": self.recipient,
            "senders": [list(pair) for pair in self.senders],
            "groups": list(self.groups),
        }

    @classmethod
    def of_header(cls, header: Any) -> NodeNames:
        """What :meth:`header` wrote; files of earlier versions have none."""
        if header is None:
            return cls()
        try:
            senders = tuple((kind, size) for kind, size in header["senders"])
            names = cls(header["recipient"], senders, tuple(header["groups"]))
        except (KeyError, TypeError, ValueError) as error:
            raise InputError("its names of nodes are not what an exposure writes") from error
        texts = (names.recipient, *names.groups, *(kind for kind, _ in senders))
        sizes = [size for _, size in senders]
        if any(type(text) is not str for text in texts) or any(type(n) is not int for n in sizes):
            raise InputError("its names of nodes are no texts, or their counts no whole numbers")
        if any(size < 0 for size in sizes):
            raise InputError("its names of nodes count fewer than none")
        return names


ONE_KIND = NodeNames()
"""The names in a graph whose nodes are all of one kind."""


def recipients_called(names: NodeNames) -> str:
    """The name of a frame's column of recipients: ``graph`` where these are classified."""
    return "graph" if names.recipient == "graph" else "node"
