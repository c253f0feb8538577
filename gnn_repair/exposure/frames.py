"""An exposure's terms as a pandas frame."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd
import torch
from torch import Tensor

from gnn_repair.exposure.arguments import member_for, nodes_for

if TYPE_CHECKING:
    from gnn_repair.exposure.value import Exposure


def term_frame(exposure: Exposure, nodes: Any = None, member: int = 0) -> pd.DataFrame:
    """One row a term: recipient, group, source, α and the contribution ℓ, one column a class.

    Where graphs are classified the recipient is called ``graph``, ``source`` is a node's number in
    the whole list and ``node`` its number in that graph.

    Before a nonlinear head single messages contribute no logits, so those columns are left out.
    Where senders are of several kinds, ``source_type`` says which and ``source`` is the number
    within that kind.
    """
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
            **({"source_type": kind} if one.names.typed and not pooled else {}),
            "source": number if one.n_id is None else _numbers(one, one.sources[row].cpu()),
            "coefficient": one.coefficients[0].cpu().numpy(),
        }
    )
    if one.graph_starts is not None:
        first = one.graph_starts[one.recipients].cpu()[slot // one.num_groups]
        frame.insert(3, "node", frame["source"] - first.numpy())
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
