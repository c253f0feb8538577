"""What recipients and senders are called, an exposure in words, and its terms as a frame.

Sources are numbered through all kinds of sender, one kind after another, so that one number names
one sender everywhere. The recipients' own kind comes first where it sends at all: its numbers are
then node numbers, as in a graph of one kind.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate, groupby
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gnn_repair.errors import InputError
from gnn_repair.exposure.checks import NOUNS, member_for, nodes_for, reconstruction
from gnn_repair.exposure.heads.head import ANSWERS, followed_by, kind_of
from gnn_repair.exposure.tying import alike_groups

if TYPE_CHECKING:
    import pandas as pd

    from gnn_repair.exposure.value import Exposure


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


# In words -----------------------------------------------------------------------------------------


def describe(exposure: Exposure) -> str:
    """What was exposed, by which rule, and how exactly: the text of ``print(exposure)``."""
    members = exposure.num_members
    head = exposure.head
    lines = [
        f"Exposure of {exposure.origin or 'a model'}"
        + (f", {members} members" * (members > 1))
        + _follows(exposure),
        f"  {_recipients(exposure)}, {counted_outputs(exposure)}, "
        f"{exposure.num_terms:,} messages ({_spread(exposure)})",
    ]
    if exposure.called:
        lines.append(f"  called as {exposure.called}")
    numbered = list(enumerate(exposure.groups))
    for rule, groups in groupby(numbered, lambda item: (item[1].rule, item[1].coefficients_from)):
        lines.append(f"  {rule[0]}; coefficients from {rule[1]}")
        lines += [f"    group {group.name}: {_size(exposure, g)}" for g, group in groups]
    if exposure.graph_starts is not None and exposure.num_groups > 1:
        some = len(alike_groups(exposure)[0]) < exposure.num_groups
        said = "every group has weights of its own, also where a node is in several"
        lines.append(f"    {said}" + "; tied() gives it one for all that weigh alike" * some)
    root = "; the node's own state is context for repairs" if exposure.root else ""
    fixed = "fixed logits" if head is None else f"aggregate of {head.width} channels; fixed"
    lines.append(f"  {fixed}: {exposure.fixed}{root}")
    for beside, words in ((True, "held as it is"), (False, "before the messages, held as it is")):
        parts = ", ".join(str(part) for part in exposure.held if part.beside == beside)
        lines += [f"  {words}: {parts}"] if parts else []
    if head is not None:
        lines.append(f"  {ANSWERS[kind_of(head)]}")
    exact = f"  reconstruction {reconstruction(exposure):.1e}"
    if exposure.residual is not None:
        exact += f"; residual {exposure.residual:.1e} on the model run with reweighted messages"
    elif head is None:
        exact += "; exact by algebra"
    if head is not None and exposure.replay is None:
        exact += "; not bound to its model (use bind)"
    lines.append(exact)
    return "\n".join(lines)


def one_line(exposure: Exposure) -> str:
    """What a list or a debugger shows of an exposure."""
    members = exposure.num_members
    counted = f"{members} members, " if members > 1 else ""
    return (
        f"<Exposure of {exposure.origin or 'a model'}: {counted}{_recipients(exposure)}, "
        f"{counted_outputs(exposure)}, "
        f"{exposure.num_groups} group{'s' * (exposure.num_groups > 1)}, "
        f"{exposure.num_terms:,} messages{_follows(exposure)}>"
    )


def _follows(exposure: Exposure) -> str:
    return "" if exposure.head is None else f", followed by: {followed_by(exposure.head)}"


def counted_outputs(exposure: Exposure) -> str:
    """``18 classes``, ``121 labels``, ``1 value``."""
    number = exposure.num_classes
    return f"{number} {NOUNS[exposure.outputs] if number == 1 else exposure.outputs}"


def _recipients(exposure: Exposure) -> str:
    """``3 nodes``, and of how many where some were left out."""
    count, nodes = exposure.num_recipients, exposure.num_nodes
    if exposure.graph_starts is not None:
        some = f" of {nodes:,}" * (count < nodes)
        noun = "graph" if nodes == 1 else "graphs"
        return f"{count:,}{some} {noun} with {int(exposure.graph_starts[-1]):,} nodes"
    noun = "node" if nodes == 1 else "nodes"
    kind = f" ({exposure.names.recipient})" if exposure.names.typed else ""
    some = "" if count == nodes else f" of {nodes:,}"
    sampled = " of a sampled subgraph" * (exposure.n_id is not None)
    return f"{count:,}{some} {noun}{kind}{sampled}"


def _size(exposure: Exposure, group: int) -> str:
    lengths = exposure.segments.diff().view(-1, exposure.num_groups)[:, group]
    absent = int((lengths == 0).sum())
    mass = exposure.mass[:, lengths > 0, group]
    text = f"{int(lengths.sum()):,} messages"
    if mass.numel():
        low, high = f"{float(mass.min()):.4g}", f"{float(mass.max()):.4g}"
        text += f", mass {low}" if low == high else f", mass {low} to {high}"
    noun = recipients_called(exposure.names)
    return text + (f", absent at {absent:,} {noun}{'s' * (absent > 1)}" if absent else "")


def _spread(exposure: Exposure) -> str:
    counts = exposure.segments[:: exposure.num_groups].diff()
    if counts.numel() == 0:
        return "none"
    low, high, mean = int(counts.min()), int(counts.max()), float(counts.double().mean())
    noun = recipients_called(exposure.names)
    if low == high:
        return f"{low:,} per {noun}"
    return f"{low:,} to {high:,} per {noun}, {mean:.1f} on average"


def term_frame(exposure: Exposure, nodes: Any = None, member: int = 0) -> pd.DataFrame:
    """One row per term: recipient, group, source, α and the contribution ℓ, one column per class.

    Where graphs are classified the recipient is called ``graph``, ``source`` is a node's number in
    the whole list and ``node`` its number in that graph; −1 where ``source_type`` says that a
    cluster or an edge is pooled.

    Before a nonlinear head single messages contribute no logits, so those columns are left out.
    Where senders are of several kinds, ``source_type`` says which and ``source`` is the number
    within that kind.
    """
    import pandas as pd  # which loads slowly

    chosen = exposure if nodes is None else exposure.restrict(nodes_for(exposure, nodes))
    one = chosen.member(member_for(exposure, member))
    lengths = one.segments.diff()
    slot = torch.repeat_interleave(lengths).cpu()
    row = one.rows.long()
    kind, number = one.names.split(one.sources[row].cpu().numpy())
    pooled = one.graph_starts is not None
    frame = pd.DataFrame(
        {
            "graph" if pooled else "node": _numbers(
                one, one.recipients.cpu()[slot // one.num_groups]
            ),
            "group": [one.groups[g].name for g in (slot % one.num_groups).tolist()],
            **({"source_type": kind} if len(one.names.senders) > pooled else {}),
            "source": number if one.n_id is None else _numbers(one, one.sources[row].cpu()),
            "coefficient": one.coefficients[0].cpu().numpy(),
        }
    )
    if one.graph_starts is not None:
        first = one.graph_starts[one.recipients].cpu()[slot // one.num_groups]
        within = frame["source"] - first.numpy()
        place = list(frame.columns).index("source") + 1
        frame.insert(place, "node", np.where(kind == "node", within, -1))
    if one.head is not None:
        return frame
    logits = pd.DataFrame(one.contributions[0, row].cpu().numpy()).add_prefix("logit ")
    return pd.concat([frame, logits], axis=1)


def _numbers(exposure: Exposure, nodes: Tensor) -> Any:
    """The graph's numbers of nodes; −1, nobody, stays."""
    if exposure.n_id is None:
        return nodes.numpy()
    names = exposure.n_id.cpu()[nodes.clamp(min=0).long()]
    return torch.where(nodes < 0, nodes, names).numpy()
