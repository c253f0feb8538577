"""An exposure in words, as a frame of its terms, and in a file.

In files plain values stand in the header, tensors by the names of the fields.
"""

from __future__ import annotations

from dataclasses import astuple, fields
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from gnn_repair.errors import InputError
from gnn_repair.exposure.heads.head import ANSWERS, followed_by, kind_of, read_head, write_head
from gnn_repair.exposure.pieces import NOUNS, OPTIONAL, PIECES, recipient_column, reconstruction
from gnn_repair.exposure.tying import alike_groups
from gnn_repair.files import check_fields, contents_of, load_tensors, save_tensors

if TYPE_CHECKING:
    import pandas as pd

    from gnn_repair.exposure.value import Exposure


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
        note = "every group has weights of its own, also where a node is in several"
        lines.append(f"    {note}" + "; tied() gives it one for all that weigh alike" * some)
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
    kind = f" ({exposure.names.recipient})" if exposure.names.by_type else ""
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
    noun = recipient_column(exposure.names)
    return text + (f", absent at {absent:,} {noun}{'s' * (absent > 1)}" if absent else "")


def _spread(exposure: Exposure) -> str:
    counts = exposure.segments[:: exposure.num_groups].diff()
    if counts.numel() == 0:
        return "none"
    low, high, mean = int(counts.min()), int(counts.max()), float(counts.double().mean())
    noun = recipient_column(exposure.names)
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

    one = (exposure if nodes is None else exposure.restrict(nodes)).member(member)
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


# In files ----------------------------------------------------------------------------------------


KIND = "gnn-repair exposure"
WITH_HEAD = "gnn-repair tailed exposure"
"""What version 0.2 called the file of an exposure with a head."""
HEADER = {
    "groups": list, "root": bool, "origin": str, "fixed": str, "residual": float | None,
    "fingerprint": list, "called": str, "names": dict | None, "outputs": str, "held": list,
    "head": dict | None,
}  # fmt: skip
ABSENT: dict[str, Any] = {
    "fingerprint": [], "called": "", "names": None, "outputs": "classes", "held": [], "head": None,
}  # fmt: skip
"""What files may leave out, and what that means; of tensors also messages that are the state."""


def write_exposure(exposure: Exposure, path: str | Path) -> None:
    """Write an exposure; what is absent, and a second name of one matrix, is left out."""
    values = {field.name: getattr(exposure, field.name) for field in fields(exposure)}
    tensors = {name: value for name, value in values.items() if isinstance(value, Tensor)}
    header = {name: values[name] for name in HEADER}
    header["groups"] = [list(astuple(group)) for group in exposure.groups]
    header["fingerprint"] = list(exposure.fingerprint)
    header["names"] = exposure.names.header() if exposure.names.typed else None
    header["held"] = [[part.title, list(part.operations), part.beside] for part in exposure.held]
    header["head"] = None if exposure.head is None else write_head(exposure.head, tensors)
    one, other = exposure.messages, exposure.state
    if one.data_ptr() == other.data_ptr() and one.shape == other.shape:
        del tensors["messages"]
    given = {n: v for n, v in header.items() if n not in ABSENT or v != ABSENT[n]}
    save_tensors(path, KIND, given, tensors)


def read_pieces(path: str | Path) -> dict[str, Any]:
    """What :func:`write_exposure` wrote, by the exposure's field names; lists of texts as lists."""
    header, tensors = load_tensors(path, KIND, formerly=(WITH_HEAD,))
    with contents_of(path):
        if "aggregate" in header:
            header, tensors = _as_written_now(header, tensors)
        header = {**ABSENT, **header}
        head = None if header["head"] is None else read_head(header["head"], tensors)
        _check_header(header)
        _check_tensors(tensors)
    # Since an exposure may hold one matrix as both, it does so after reading, too.
    return {"messages": tensors["state"], **header, **tensors, "head": head}


def _as_written_now(header: dict[str, Any], tensors: dict[str, Tensor]) -> tuple[Any, Any]:
    """Header and tensors of an exposure with a head that version 0.2 wrote."""
    check_fields(header, {"aggregate": dict, "tail": dict, "residual": float | None}, "header")
    names = {"frozen_logits": "frozen_logits", "aggregate/frozen_logits": "frozen_aggregate"}
    moved = {
        names.get(name, name.removeprefix("aggregate/").replace("tail/", "head/", 1)): tensor
        for name, tensor in tensors.items()
    }
    return {**header["aggregate"], "head": header["tail"], "residual": header["residual"]}, moved


def _check_header(header: dict[str, Any]) -> None:
    check_fields(header, HEADER, "header")
    for group in header["groups"]:
        if not isinstance(group, list) or [type(text) for text in group] != [str] * 3:
            raise InputError("a group is not named by three texts")
    for part in header["held"]:
        fit = isinstance(part, list) and [type(item) for item in part] == [str, list, bool]
        if not fit or any(not isinstance(name, str) for name in part[1]):
            raise InputError(f"a held part is {str(part)[:60]!r}: not a title, names and a mark")
    if any(not isinstance(digest, str) for digest in header["fingerprint"]):
        raise InputError("its fingerprint is not a list of texts")
    if header["residual"] is not None and header["residual"] < 0:
        raise InputError(f"residual is {header['residual']}, which is negative")


def _check_tensors(tensors: dict[str, Tensor]) -> None:
    """What the exposure itself does not check when it is built."""
    if unknown := sorted(tensors.keys() - PIECES.keys()):
        raise InputError(f"it holds {unknown[0][:80]!r}, which is no piece of an exposure")
    if missing := sorted(PIECES.keys() - {*OPTIONAL, "messages"} - tensors.keys()):
        raise InputError(f"it lacks {missing[0]}, which every exposure has")
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise InputError(f"{name} holds NaN or infinite values")
