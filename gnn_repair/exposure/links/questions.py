"""Which links are asked about: numbers of nodes, in one graph or between two types of nodes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import HeteroData

from gnn_repair.errors import InputError
from gnn_repair.exposure.hetero.graph import Relation, counts_of, in_words, is_typed, typed_field


def relation_of(data: Any, relation: Any) -> Relation | None:
    """The relation whose links are predicted; None in a graph of one type."""
    if not is_typed(data):
        if relation is not None:
            raise InputError(
                f"relation is {relation!r:.80}, but data is a {type(data).__name__} without types "
                "of nodes; leave it out, or pass a HeteroData"
            )
        return None
    if not isinstance(data, HeteroData):
        raise InputError(f"data is a {type(data).__name__} with types of nodes; pass a HeteroData")
    kinds = list(data.edge_types)
    if relation is not None:
        if relation not in kinds:
            told = ", ".join(map(repr, kinds))
            raise InputError(f"relation is {relation!r:.80}; choose one of {told}")
        source, name, target = relation
        return (source, name, target)
    held = list(typed_field(data, "edge_label_index") or {})
    if len(held) != 1:
        which = ", ".join(map(repr, held or kinds))
        raise InputError(
            f"{len(held)} relations of data hold edge_label_index; say with relation= which links "
            f"are predicted: {which}"
        )
    found: Relation = held[0]
    return found


def chosen_links(data: Any, links: Any, relation: Relation | None) -> Tensor:
    """[2, L]: the links that are given, or those that data holds."""
    store = data if relation is None else data[relation]
    links = getattr(store, "edge_label_index", None) if links is None else links
    if not isinstance(links, Tensor):
        kind = "missing" if links is None else f"a {type(links).__name__}"
        raise InputError(f"links is {kind}; give a tensor [2, L] of source and target nodes")
    if links.dim() != 2 or links.shape[0] != 2 or not links.shape[1]:
        raise InputError(f"links has shape {list(links.shape)}; give [2, L], at least one link")
    if links.dtype not in (torch.int64, torch.int32):
        raise InputError(f"links holds {links.dtype}; give whole numbers, such as links.long()")
    _check_ends(data, links, relation)
    return links.long()


def _check_ends(data: Any, links: Tensor, relation: Relation | None) -> None:
    """Raise InputError where a link names a node that is not there, or joins one with itself."""
    if relation is None:
        sizes, nouns = [getattr(data, "num_nodes", None)] * 2, ["node", "node"]
    else:
        counts = counts_of(data)
        nouns = [relation[0], relation[2]]
        sizes = [counts.get(kind) for kind in nouns]
    for ends, size, noun in zip(links, sizes, nouns, strict=True):
        low, high = int(ends.min()), int(ends.max())
        if low < 0 or (size is not None and high >= size):
            raise InputError(f"links names {noun} {low if low < 0 else high}, which does not exist")
    same = (links[0] == links[1]).nonzero()
    if same.numel() and nouns[0] == nouns[1]:
        first = int(same[0])
        where = "" if relation is None else f" in {in_words(relation)}"
        raise InputError(
            f"link {first}{where} joins {nouns[0]} {int(links[0, first])} with itself: to reweight "
            "one end's messages is to reweight the other's; leave it out"
        )
