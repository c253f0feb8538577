"""Names of groups and of places in a model, and what an exposure says of itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torch import Tensor, nn
from torch_geometric.nn import DirGNNConv, MessagePassing
from torch_geometric.nn.aggr import Aggregation

from gnn_repair.exposure.record.analysis import Analysis, FinalSite, parts_of
from gnn_repair.exposure.value import Group

if TYPE_CHECKING:
    from gnn_repair.exposure.hetero.graph import TypedGraph
    from gnn_repair.exposure.record.build import Block
    from gnn_repair.exposure.record.held import HeldPart

SUPERSCRIPT = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
ROOTS = ("root_weight", "lin_root", "root", "lin3", "res", "eps", "lins_r", "combine_root")
"""Attributes by which convolutions show that a node's own input enters beside the aggregate."""


@dataclass(frozen=True)
class Title:
    """A place in the model."""

    name: str
    text: str


def holder_of(modules: Mapping[str, nn.Module], name: str) -> tuple[str, nn.Module | None]:
    """The convolution, or else the module, in which an operation happens."""
    parts = name.split(".") if name else []
    for count in range(len(parts), 0, -1):
        prefix = ".".join(parts[:count])
        if isinstance(modules.get(prefix), MessagePassing):
            return prefix, modules[prefix]
    if isinstance(modules.get(""), MessagePassing):
        return "", modules[""]
    return name, modules.get(name)


def titled(modules: Mapping[str, nn.Module], name: str) -> Title:
    """Such as ```conv1` (GCNConv)``."""
    held, module = holder_of(modules, name)
    kind = type(module).__name__
    return Title(held, f"`{held}` ({kind})" if held else f"the forward of {kind}")


@dataclass(frozen=True)
class GroupWords:
    """A group and the module it is of."""

    group: Group
    module: str


def group_words(
    analysis: Analysis, modules: Mapping[str, nn.Module], blocks: Sequence[Block],
    graph: TypedGraph | None,
) -> Iterator[tuple[Block, GroupWords]]:  # fmt: skip
    """Every block with a name of its own and a rule."""
    found = [(block, *_named(analysis, modules, block, graph)) for block in blocks]
    holders = {(words.group.name, words.module) for _, words, _ in found}
    several = {name for name, count in Counter(name for name, _ in holders).items() if count > 1}
    used = Counter[GroupWords]()
    for block, words, module in found:
        name, alike = words.group.name, [b for b, w, _ in found if w == words]
        if name in several and words.module:
            name = f"{name} ({words.module})"
        sums = len({id(b.pieces[0].site) for b in alike})
        if sums < len(alike):
            kind = "head" if hasattr(module, "heads") or graph is not None else "stack"
            name = f"{name} {kind} {used[words]}"
        elif len(alike) > 1:
            relations = hasattr(module, "num_relations")
            name = f"{name} relation {used[words]}" if relations else f"{name} {used[words] + 1}"
        used[words] += 1
        yield block, replace(words, group=replace(words.group, name=name))


def _named(
    analysis: Analysis, modules: Mapping[str, nn.Module], block: Block, graph: TypedGraph | None
) -> tuple[GroupWords, nn.Module | None]:
    site = block.pieces[0].site
    name, module = holder_of(modules, analysis.record.steps[site.step].module)
    convolution = isinstance(module, MessagePassing | Aggregation)
    kind = type(module).__name__ if convolution else _kind(site)
    rule, origin = _rule(analysis, site)
    base = name or kind
    if graph is not None:
        base = _relation(analysis, site, block, graph) or base
    if site.powers is not None:
        base = f"{name} {power_label(site.powers)}".strip()
    elif block.kind is not None and graph is None:
        base = f"{base} relation {block.kind}"
    return GroupWords(Group(base, f"{kind}: {rule}", origin), name), module


def _kind(site: FinalSite) -> str:
    if site.reduction.matrix is not None:
        return "matrix product"
    return "mean" if site.reduction.mean else "sum"


def power_label(powers: Sequence[float]) -> str:
    """Such as ``Â²``."""
    used = [k for k, c in enumerate(powers) if c]
    if len(used) == 1 and powers[used[0]] == 1.0:
        return {0: "I", 1: "Â"}.get(used[0], "Â" + str(used[0]).translate(SUPERSCRIPT))
    return f"Σ γₖ Âᵏ, K = {len(powers) - 1}"


def _rule(analysis: Analysis, site: FinalSite) -> tuple[str, str]:
    """What α and h are, and where α comes from."""
    if site.powers is not None:
        return f"α = entries of {power_label(site.powers)}, h = its input", "sparse product of Â"
    after = " / degree" if site.after or site.reduction.mean else ""
    if site.reduction.matrix is not None:
        live = analysis.value(site.reduction.matrix).live
        origin = "computed by the model (attention)" if live else "the matrix itself"
        return "α = the matrix's entry, h = the other operand's row", origin + after
    parts = parts_of(analysis, site.reduction)
    state = "the whole message" if parts.table is None else "the sender's row"
    if not parts.factors:
        return f"α = 1 per message, h = {state}", "1 per message" + after
    names = [analysis.value(analysis.root(f.value)) for f in parts.factors]
    told = [value.name or ("attention or gate" if value.live else "graph") for value in names]
    origin = " × ".join(dict.fromkeys(told))
    return f"α = the number that multiplies it, h = {state}", origin + after


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
    return ""


def fixed_words(held: Sequence[HeldPart], shifted: bool) -> str:
    """What sits in β, in words."""
    beside = [str(one) for one in held if one.beside]
    text = "biases, root and skip terms"
    text += f"; held as it is: {', '.join(beside)}" if beside else ""
    return text + "; log_softmax head: up to a shift common to a node's classes" * shifted


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
