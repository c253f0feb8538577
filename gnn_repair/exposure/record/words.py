"""What an exposure says of itself: names of groups and places; and why a model is not exposed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch_geometric.nn import DirGNNConv, MessagePassing, aggr
from torch_geometric.nn.aggr import Aggregation

from gnn_repair.exposure.calling import ModelOnData, TypedGraph, field, field_names
from gnn_repair.exposure.record.analysis import Analysis, FinalSite
from gnn_repair.exposure.record.recorder import RecordedStep
from gnn_repair.exposure.value import LAST_HOP, Group, HeldPart

if TYPE_CHECKING:
    from gnn_repair.exposure.calling import TypedGraph
    from gnn_repair.exposure.record.build import Block


SUPERSCRIPT = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
WEIGHED = {
    "sum": "1 per {noun}",
    "mean": "1 / its number of {noun}s",
    "attention": "attention",
    "weighted": "a weight that the model computes",
    "scaled": "the graph's number per {noun} (weights, degrees)",
}
"""By how sums are weighed: what α is."""
ROOTS = ("root_weight", "lin_root", "root", "lin3", "res", "eps", "lins_r", "combine_root")
"""Attributes by which convolutions show that a node's own input enters beside the aggregate."""


def holder_of(modules: Mapping[str, nn.Module], name: str) -> tuple[str, nn.Module | None]:
    """The convolution, the aggregation, or else the module in which an operation happens."""
    parts = name.split(".") if name else []
    outer = [".".join(parts[:count]) for count in range(len(parts), -1, -1)]
    for kind in (MessagePassing, Aggregation):
        for prefix in outer:
            if isinstance(modules.get(prefix), kind):
                return prefix, modules[prefix]
    return name, modules.get(name)


def titled(modules: Mapping[str, nn.Module], name: str) -> str:
    """Such as ```conv1` (GCNConv)``."""
    held, module = holder_of(modules, name)
    kind = type(module).__name__
    return f"`{held}` ({kind})" if held else f"the forward of {kind}"


def group_words(
    analysis: Analysis, modules: Mapping[str, nn.Module], blocks: Sequence[Block],
    graph: TypedGraph | None, pooled: bool,
) -> Iterator[Group]:  # fmt: skip
    """A group for every block, with a name of its own and a rule."""
    found = [_named(analysis, modules, one, blocks, graph, pooled) for one in blocks]
    keys = [(group.name, holder) for group, holder, _ in found]
    several = {name for name, count in Counter(name for name, _ in set(keys)).items() if count > 1}
    used = Counter[tuple[str, str]]()
    for key, (group, holder, module) in zip(keys, found, strict=True):
        name = group.name
        alike = [b for b, other in zip(blocks, keys, strict=True) if other == key]
        if name in several and holder:
            name = f"{name} ({holder if graph is None else _outer(holder)})"
        sums = len({id(b.pieces[0].site) for b in alike})
        if sums < len(alike):
            kind = "head" if hasattr(module, "heads") or graph is not None else "stack"
            name = f"{name} {kind} {used[key]}"
        elif len(alike) > 1:
            relations = hasattr(module, "num_relations")
            name = f"{name} relation {used[key]}" if relations else f"{name} {used[key] + 1}"
        used[key] += 1
        yield replace(group, name=name)


def _outer(name: str) -> str:
    """A convolution's name without the relation's at its end: ``conv2`` or ``convs.1``."""
    parts = [part for part in name.split(".") if "__" not in part]
    return ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "convs" else parts)


def _named(
    analysis: Analysis, modules: Mapping[str, nn.Module], block: Block, blocks: Sequence[Block],
    graph: TypedGraph | None, pooled: bool,
) -> tuple[Group, str, nn.Module | None]:  # fmt: skip
    """The group of a block before names are told apart, its module's name, and the module."""
    site = block.pieces[0].site
    name, module = holder_of(modules, analysis.record.steps[site.step].module)
    convolution = isinstance(module, MessagePassing | Aggregation)
    kind = type(module).__name__ if convolution else _kind(site)
    how, rule, origin = _rule(analysis, site, block, blocks, pooled)
    if pooled:
        kind = f"{how} pool"
    base = name or kind
    if graph is not None:
        base = _relation(analysis, site, block, graph) or base
    if site.powers is not None:
        base = f"{name} {power_label(site.powers.coefficients)}".strip()
    elif block.kind is not None and graph is None:
        base = f"{base} relation {block.kind}"
    if site.shortened:
        base, rule = f"{base} last hop", f"{rule}; {LAST_HOP}"
    return Group(base, f"{kind}: {rule}", origin), name, module


def _kind(site: FinalSite) -> str:
    if site.reduction.matrix is not None:
        return "matrix product"
    return "mean" if site.reduction.mean else "sum"


def _weighing(analysis: Analysis, site: FinalSite, block: Block, blocks: Sequence[Block]) -> str:
    """How a sum weighs its messages, as the coefficients show; no answer depends on it."""
    mean = bool(site.after) or site.reduction.mean
    for how in ("mean", "sum") if mean else ("sum", "mean"):
        if _are_ones(block, by_count=how == "mean"):
            return how
    of, site = site, site.members[0] if site.members else site
    factors = () if site.parts is None else site.parts.factors
    numbers = [site.reduction.matrix, *(factor.value for factor in factors)]
    if not any(n is not None and analysis.value(n).live for n in numbers):
        return "scaled"
    mass = block.coefficients.new_zeros(of.reduction.size, dtype=torch.float64)
    for one in blocks:  # relations may share a softmax
        first = one.pieces[0]
        if first.site is of and first.channels[:1] == block.pieces[0].channels[:1]:
            mass.index_add_(0, one.recipients, one.coefficients.double())
    whole = bool(((mass[mass != 0] - 1).abs() < 1e-4).all())
    return "attention" if whole else "weighted"


def _are_ones(block: Block, by_count: bool) -> bool:
    """Whether coefficients are 1, or 1 / the recipient's number of entries."""
    alpha = block.coefficients
    if by_count and len(alpha):
        alpha = alpha * torch.bincount(block.recipients)[block.recipients]
    return not len(alpha) or all(abs(float(end) - 1) < 1e-4 for end in torch.aminmax(alpha))


def power_label(powers: Sequence[float]) -> str:
    """Such as ``Â²``."""
    used = [k for k, c in enumerate(powers) if c]
    if len(used) == 1 and powers[used[0]] == 1.0:
        return {0: "I", 1: "Â"}.get(used[0], "Â" + str(used[0]).translate(SUPERSCRIPT))
    return f"Σ γₖ Âᵏ, K = {len(powers) - 1}"


def _rule(
    analysis: Analysis, site: FinalSite, block: Block, blocks: Sequence[Block], pooled: bool
) -> tuple[str, str, str]:
    """How messages are weighed, what α and h are, and where α comes from."""
    if site.powers is not None:
        label = power_label(site.powers.coefficients)
        return "scaled", f"α = entries of {label}, h = its input", "sparse product of Â"
    how, noun = _weighing(analysis, site, block, blocks), site.sender if pooled else "message"
    said = WEIGHED[how].format(noun=noun)
    after = " / count" if site.after or site.reduction.mean else ""
    site = site.members[0] if site.members else site
    parts = site.parts
    if site.reduction.matrix is not None or parts is None:
        assert site.reduction.matrix is not None
        live = analysis.value(site.reduction.matrix).live
        origin = "the model" if live else "the matrix itself"
        said = said if live or pooled else "the matrix's entry"
        return how, f"α = {said}, h = the row that is multiplied", origin + after
    state = "the whole message" if parts.table is None else "the sender's row"
    state = f"the {noun}'s row".replace("row's ", "") if pooled else state
    values = [analysis.value(analysis.root(f.value)) for f in parts.factors]
    told = [value.name or ("the model" if value.live else "the graph") for value in values]
    origin = " × ".join(dict.fromkeys(told)) or "the sum itself"
    return how, f"α = {said}, h = {state}", origin + after


def _relation(analysis: Analysis, site: FinalSite, block: Block, graph: TypedGraph) -> str:
    """The relation whose edges a sum goes over, if the record shows one."""
    relations = list(graph.edges)
    if block.kind is not None and site.reduction.relations is not None:
        itself = f"{graph.node_type} to itself"
        return " ".join(relations[block.kind]) if block.kind >= 0 else itself
    matrix = [] if site.reduction.matrix is None else [site.reduction.matrix]
    above = analysis.leaves_above(matrix)
    found = [r for r, edges in graph.edges.items() if id(edges) in above]
    if len(found) == 1:
        return " ".join(found[0])
    known = block.sources[block.sources >= 0]
    kinds = {graph.kind_of(int(end)) for end in (known.min(), known.max())} if len(known) else set()
    return f"{kinds.pop()} to {graph.node_type}" if len(kinds) == 1 else ""


def fixed_words(shifted: bool) -> str:
    """What sits in β, in words."""
    text = "biases, root and skip terms"
    return text + "; log_softmax head: up to a shift common to a node's classes" * shifted


def held_parts(
    analysis: Analysis, where: Callable[[str], str], own: Collection[int], beside: Collection[int]
) -> tuple[HeldPart, ...]:
    """Everything that mixes nodes on a way to the logits and is not one of the final sums.

    Args:
        analysis: the record.
        where: a module's title, by its name.
        own: the final sums.
        beside: what lets other nodes' numbers in on ways to the logits that pass none of them.
    """
    found: dict[tuple[str, bool], list[str]] = {}
    within = set(analysis.within(own))
    for place in sorted({*beside, *within} - set(own)):
        step = analysis.record.steps[place]
        names = found.setdefault((where(step.module), place in beside), [])
        if step.name not in names:
            names.append(step.name)
    return tuple(HeldPart(title, tuple(names), near) for (title, near), names in found.items())


def has_root(
    analysis: Analysis, modules: Mapping[str, nn.Module], sites: Sequence[FinalSite]
) -> bool:
    """Whether a node's own input enters beside the aggregate."""
    names = [holder_of(modules, analysis.record.steps[s.step].module)[0] for s in sites]
    holders = [modules[name] for name in names if isinstance(modules.get(name), MessagePassing)]
    parents = [modules.get(name.rpartition(".")[0]) for name in names]
    holders += [parent for parent in parents if isinstance(parent, DirGNNConv)]
    marks = [getattr(holder, attribute, None) for holder in holders for attribute in ROOTS]
    return any(isinstance(m, Tensor | nn.Module) or m is True or m in ("sum", "cat") for m in marks)


NO_SUMS: dict[tuple[type, ...], str] = {
    (aggr.SortAggregation,): "orders the nodes of a graph and keeps the first",
    (aggr.QuantileAggregation,): "takes a quantile of a graph's nodes",
    (aggr.LSTMAggregation, aggr.GRUAggregation): "reads the nodes of a graph one after another",
    (aggr.MLPAggregation,): "lays the nodes of a graph side by side",
    (aggr.SetTransformerAggregation, aggr.GraphMultisetTransformer,
     aggr.PatchTransformerAggregation): "lets the nodes of a graph attend to each other",
}  # fmt: skip
"""PyG's aggregations of graphs that are no sums, and what they do."""
ADDING = {"mm", "bmm", "addmm", "baddbmm", "sum", "mean", "scatter_add", "index_add"}
"""Operations that add up rows."""
SUMS = "only sums, means and attention can be reweighted"


def why_nothing(
    analysis: Analysis, modules: Mapping[str, nn.Module], subject: ModelOnData, size: int
) -> str:
    """What stands in the way of a mixture."""
    name = type(subject.model).__name__
    mixing = analysis.beside([])
    noun = "node" if subject.graph is not None or size == subject.nodes else "graph"
    for told in no_sums(analysis, modules):
        return told
    if mixing:
        several = [analysis.record.steps[place] for place in mixing]
        named = [step for step in several if not analysis.is_layer(step)]
        last = (named or several)[-1]
        what = f"{titled(modules, last.module)} mixes nodes by {operation_of(last)}"
        if last.reduction is None and last.name in ADDING:
            return f"{what} into rows that stand for no {noun} (clusters, attention heads); {SUMS}"
        if last.reduction is None:
            return f"{what}, no weighted sum of messages; {SUMS}"
        return (
            f"{what}, and the result has no row for every {noun}: it sums for one {noun} at a "
            "time, or rows that are no nodes; write it as one sum over messages"
        )
    graph = subject.graph
    if graph is not None:
        into = sorted(_types_reached(analysis, graph))
        where = f"; sums go to {', '.join(map(repr, into))}" if into else ""
        return f"{name} sends no messages to {graph.node_type!r} nodes{where}"
    if any(step.reduction is not None for step in analysis.record.steps):
        return (
            f"what {name} sums up leaves PyTorch on the way to the logits (numpy, Python numbers), "
            "or does not reach them, so it cannot be followed"
        )
    told = (
        f"no aggregation happens in {name}'s forward: none of its operations lets one {noun}'s "
        "numbers into another's"
    )
    for field_name in field_names(subject.data):
        if _holds_graph(field(subject.data, field_name), subject.data, size):
            return (
                f"{told}; the graph's adjacency matrix stands among the columns of "
                f"data.{field_name}, which it reads as features: multiply that part by itself, as "
                "a product with an N × N matrix, and add the rest"
            )
    return f"{told}; where features were propagated beforehand, pass a forward= that propagates"


def no_sums(analysis: Analysis, modules: Mapping[str, nn.Module]) -> Iterator[str]:
    """What to say of the aggregations that ran and are no sums."""
    if not analysis.pooled:
        return
    running = {step.module.split(".")[0] for step in analysis.record.steps}
    for kinds, what in NO_SUMS.items():
        for name, module in modules.items():
            if isinstance(module, kinds) and name.split(".")[0] in running:
                title = f"`{name}` ({type(module).__name__})"
                yield f"{title} {what}, no weighted sum of their vectors; {SUMS}"


def _types_reached(analysis: Analysis, graph: TypedGraph) -> set[str]:
    """The types of node that the model's sums go to."""
    rows = [
        rows for step in analysis.record.steps if step.reduction is not None
        for out in step.outs for rows in analysis.value(out).rows
    ]  # fmt: skip
    return {graph.kind_of(int(one.ids.min())) for one in rows if one.ids.numel()}


def operation_of(step: RecordedStep) -> str:
    """Such as ```scatter_reduce` (amax)``."""
    how = next((a for a in step.args if isinstance(a, str)), "")
    return f"`{step.name}`" + f" ({how})" * bool(how)


def broken_words(step: RecordedStep, where: Callable[[str], str], dtype: torch.dtype) -> str:
    """What to say of the first operation that gives NaN or infinite numbers."""
    return (
        f"{where(step.module)} leaves the numbers that `{step.name}` is made for, or overflows "
        f"{dtype}; clamp what it reads, or pass model.double() and double data"
    )


def _holds_graph(value: object, data: object, rows: int) -> bool:
    """Whether the first or the last N columns of a wider table are the graph's adjacency."""
    edges = field(data, "edge_index")
    if not isinstance(value, Tensor) or not isinstance(edges, Tensor) or edges.dim() != 2:
        return False
    wide = value.layout == torch.strided and value.dim() == 2 and value.shape[1] > rows
    if not wide or value.shape[0] != rows or not edges.numel():
        return False
    graph = torch.zeros(rows, rows, dtype=torch.bool, device=value.device)
    graph[edges[0], edges[1]] = True
    parts = (value[:, :rows] != 0, value[:, -rows:] != 0)
    return any(bool((part == one).all()) for part in parts for one in (graph, graph.t()))
