"""From labels, masks and graphs to what a repair is fitted to, and how it learns from that."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid
from torch_geometric.data import Data
from torch_geometric.utils import coalesce

from gnn_repair.backbones import Frozen
from gnn_repair.checks import as_nodes
from gnn_repair.devices import choose_device
from gnn_repair.errors import InputError, SplitError
from gnn_repair.exposure import Exposure
from gnn_repair.exposure.links.value import LinkExposure
from gnn_repair.exposure.pieces import require_own, truths_for
from gnn_repair.exposure.value import focus
from gnn_repair.f1 import micro_scores
from gnn_repair.kernels import row_hash
from gnn_repair.kernels.sets import LOW
from gnn_repair.repair.inputs import SEEDS_A_STEP, Noise, RepairInputs
from gnn_repair.training import Parameters, ProgressCallback, Trainee

LARGE = 1 << 20
"""Terms from which it pays to leave out those of other recipients; below, setting up is seconds at
most, and numbers stay the very same."""
SEED_STRIDE, EPOCH_STRIDE = 0x9E3779B1, 0x85EBCA77
"""Odd 32-bit numbers far apart from their multiples: seeds and epochs share no stream."""
Predict = Callable[[Parameters, Any, Tensor, Noise | None], Tensor]
"""Logits [S, L, C] of targets [S, L], from parameters, tables and dropout."""
SHARE = 0.5
"""Of all terms: where targets read more than this, numbering anew would cost what it saves."""


class Targets(NamedTuple):
    """Each member's own recipients, padded to one length."""

    positions: Tensor
    """[S, L]: positions among the recipients; where padded, the member's first once more."""
    labels: Tensor
    """[S, L], likewise."""
    sizes: Tensor
    """[S]: how many are real; they come first."""
    truths: Tensor | None = None
    """[n, K]: where outputs are labels, those of every recipient: 0, 1, or NaN where unknown; the
    ``labels`` above then mean nothing."""
    shares: Tensor | None = None
    """[S, n]: each recipient's share of a member's loss; equal ones where None."""

    @property
    def real(self) -> Tensor:
        """[S, L] bool."""
        place = torch.arange(self.positions.shape[1], device=self.positions.device)
        return place < self.sizes.unsqueeze(1)


@dataclass(frozen=True, eq=False)
class Task:
    """What a repair is fitted to: a frozen model and labels that are known to be sound."""

    exposure: Exposure
    """On the device where the repair is fitted."""
    y: Tensor
    """[N]; the labels of training and validation nodes alone, 0 elsewhere."""
    train: Tensor
    """[S, n] bool, by recipient."""
    val: Tensor
    """[S, n] bool."""
    data: Data | None = None
    """The graph, for repairs that read it; else neighbours are the exposure's own sources."""
    batch_size: int | None = None
    """Targets an update sees; None: all."""
    on_progress: ProgressCallback | None = None
    frozen: Frozen | None = None
    """The model itself, for what trains it anew."""
    copies: int = 1
    """K: how many copies of each member learn side by side, each with targets of its own."""
    truths: Tensor | None = None
    """As in :class:`Targets`, and so are the shares."""
    shares: Tensor | None = None

    @cached_property
    def inputs(self) -> RepairInputs:
        """What repairs see of the exposure."""
        return RepairInputs(self.exposure, self.copies)

    @property
    def labels(self) -> Tensor:
        """[n], of the recipients."""
        return self.y[self.exposure.recipients]

    @cached_property
    def train_targets(self) -> Targets:
        """What is learned from."""
        return self._targets(self.train)._replace(shares=self.shares)

    @cached_property
    def val_targets(self) -> Targets:
        """What epochs are chosen by."""
        return self._targets(self.val)

    def _targets(self, chosen: Tensor) -> Targets:
        """Each row's chosen recipients [S, n]; padding repeats a row's first."""
        sizes = chosen.sum(1)
        # A stable sort brings each member's own targets to the front, in order.
        order = torch.sort(chosen.int(), dim=1, descending=True, stable=True).indices
        order = order[:, : int(sizes.max())]
        real = torch.arange(order.shape[1], device=order.device) < sizes.unsqueeze(1)
        # Padding repeats the member's own target: another's might not even be computable for it.
        index = torch.where(real, order, order[:, :1])
        return Targets(index, self.labels[index], sizes, self.truths)

    @cached_property
    def links(self) -> Tensor:
        """[2, E] (source, recipient) without self-loops, of the graph or the exposure's sources."""
        if self.data is None:
            entries = sources_to_recipients(self.exposure)
        else:
            entries = self.data.edge_index.to(self.y.device).long()
        return entries[:, entries[0] != entries[1]]

    def by_node(self, values: Tensor) -> Tensor:
        """Values of the recipients [S, n, …] as values of the nodes [S, N, …], zero elsewhere."""
        out = values.new_zeros(values.shape[0], self.exposure.num_nodes, *values.shape[2:])
        out[:, self.exposure.recipients] = values
        return out.float() if values.is_floating_point() else out


def prepare(
    exposure: Exposure,
    y: Any,
    train: Any,
    val: Any,
    data: Data | None = None,
    device: str | torch.device = "auto",
    *,
    takes_labels: bool = False,
    **more: Any,
) -> Task:
    """Check what ``fit`` was given, and bring it to the device; ``more`` are fields of the task.

    ``takes_labels`` says whether several labels per node can be learned from.
    """
    place, here = choose_device(device), exposure.recipients.device
    same = here.type == place.type and (place.index is None or here.index == place.index)
    exposure = exposure if same else exposure.to(place)
    _check_outputs(exposure, takes_labels)
    train, val = _mask(exposure, train, "train"), _mask(exposure, val, "val")
    both = (train & val).nonzero()
    if both.numel():
        node, member = both[0].tolist()
        raise SplitError(
            f"{exposure.names.node(node)} is in train and in val (member {member}); "
            "make the two disjoint"
        )
    recipients = exposure.recipients
    if exposure.outputs == "labels":
        more["truths"] = _truths(exposure, y, train, val)[recipients]
        y = torch.zeros(exposure.num_nodes, dtype=torch.long, device=recipients.device)
    else:
        used = (train | val).any(1)
        y = torch.where(used, _labels(exposure, y, used), 0)
        _warn_absent(exposure, y, train)
    if data is not None:
        data = check_graph_data(exposure, data)
    train, val = (mask[recipients].t().contiguous() for mask in (train, val))
    return Task(exposure, y, train, val, data, **more)


def require_exposure(exposure: Any) -> None:
    """Raise unless this is an exposure."""
    if isinstance(exposure, LinkExposure):
        raise InputError(
            "exposure is of links, and repairs reweight the messages of nodes or graphs that are "
            "classified: one node's weights would serve all of its links; ask solve about links"
        )
    if not isinstance(exposure, Exposure):
        raise InputError(
            f"exposure is {type(exposure).__name__}; give what expose(model, data) returns"
        )


def _check_outputs(exposure: Exposure, labels: bool) -> None:
    if exposure.outputs == "classes" or (labels and exposure.outputs == "labels"):
        return
    if exposure.outputs == "values":
        raise InputError(
            "the exposure's outputs are values, and repairs learn classes or labels; ask "
            "value_range what reweighting could do"
        )
    refit = ", or RefitHead" * (exposure.embedding is not None)
    raise InputError(
        "the exposure's outputs are labels, which this repair cannot learn; use Reweighting, "
        f"SetTranslation or NodeTranslation{refit}"
    )


def _truths(exposure: Exposure, y: Any, train: Tensor, val: Tensor) -> Tensor:
    """Labels [N, K], some of them known at training and at validation nodes."""
    truths = truths_for(exposure, y)
    for mask, name in ((train, "train"), (val, "val")):
        known = (~truths.isnan()).any(1, keepdim=True) & mask
        empty = (~known.any(0)).nonzero()
        if empty.numel():
            raise InputError(
                f"no {exposure.names.recipient} of {name} of member {int(empty[0])} has a known "
                "label"
            )
    absent = ~((truths == 1) & train.any(1, keepdim=True)).any(0)
    if bool(absent.any()):
        warnings.warn(
            f"no training {exposure.names.recipient} has label "
            f"{int(absent.nonzero()[0])}: what is learned of it is its absence",
            stacklevel=4,  # whoever called fit
        )
    return truths


def _mask(exposure: Exposure, chosen: Any, name: str) -> Tensor:
    """Nodes as a mask, bool [N, S]."""
    if getattr(chosen, "dtype", None) == torch.bool:
        require_own(exposure, chosen, name)
    mask = _boolean(chosen, exposure.num_nodes, name).to(exposure.recipients.device)
    if mask.shape[1] not in (1, exposure.num_members):
        raise SplitError(
            f"{name} has {mask.shape[1]} splits but the exposure has {exposure.num_members} "
            f"members; pass the members' own columns, such as {name}[:, splits]"
        )
    mask = mask.expand(-1, exposure.num_members)
    empty = (~mask.any(0)).nonzero()
    if empty.numel():
        raise SplitError(f"{name} of member {int(empty[0])} is empty; give it at least one")
    known = torch.zeros(exposure.num_nodes, dtype=torch.bool, device=mask.device)
    known[exposure.recipients] = True
    outside = (mask & ~known.unsqueeze(1)).nonzero()
    if outside.numel():
        raise SplitError(
            f"{exposure.names.node(int(outside[0, 0]))} of {name} is not among the "
            f"exposure's recipients; leave it out of {name} or expose it"
        )
    return mask


def _boolean(chosen: Any, nodes: int, name: str) -> Tensor:
    """Nodes as a mask, bool [N, columns]."""
    by_member = isinstance(chosen, Tensor) and chosen.dtype == torch.bool and chosen.dim() == 2
    if by_member and len(chosen) == nodes:
        return cast("Tensor", chosen)
    picked = as_nodes(chosen, nodes, name)
    mask = torch.zeros(nodes, 1, dtype=torch.bool, device=picked.device)
    return mask.index_fill(0, picked, True)


def _labels(exposure: Exposure, y: Any, used: Tensor) -> Tensor:
    """Labels [N] int64, in range wherever a mask is."""
    if not isinstance(y, Tensor):
        raise InputError(f"y is {type(y).__name__}; give a tensor with a label for each node")
    require_own(exposure, y, "y")
    if y.shape != (exposure.num_nodes,):
        raise InputError(
            f"y has shape {list(y.shape)}; give it a label for each of "
            f"{exposure.num_nodes} {exposure.names.recipient}s"
        )
    if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
        raise InputError(f"y is {y.dtype}; give whole numbers, such as y.long()")
    y = y.to(exposure.recipients.device).long()
    wrong = used & ((y < 0) | (y >= exposure.num_classes))
    if bool(wrong.any()):
        node = int(wrong.nonzero()[0])
        raise InputError(
            f"{exposure.names.node(node)} has label {int(y[node])} but is in train or val; "
            f"labels of training and validation {exposure.names.recipient}s must "
            f"lie in 0..{exposure.num_classes - 1}"
        )
    return y


def _warn_absent(exposure: Exposure, y: Tensor, train: Tensor) -> None:
    for member in range(train.shape[1]):
        present = torch.bincount(y[train[:, member]], minlength=exposure.num_classes) > 0
        if not bool(present.all()):
            absent = int((~present).nonzero()[0])
            warnings.warn(
                f"member {member} is repaired without any training "
                f"{exposure.names.recipient} of class {absent}",
                stacklevel=4,  # whoever called fit
            )


def require_nodes(exposure: Exposure, what: str) -> None:
    """Raise where graphs are classified: they have no links to each other."""
    if exposure.graph_starts is not None:
        raise InputError(
            f"{what} sends labels along the links between recipients, and this exposure classifies "
            "graphs, which have none; use reweighting, a translation or a refitted head"
        )


def sources_to_recipients(exposure: Exposure) -> Tensor:
    """Who sends to whom among the recipients, each pair once, [2, E] in PyG's order."""
    source = exposure.sources[exposure.rows.long()].long()
    # Before a head the terms are its mixture's.
    mixture = exposure.aggregate
    recipient = exposure.recipients[mixture.terms_by_recipient.recipients.long()]
    # The others are terms without a message, or senders of another kind than the recipients.
    sent = (source >= 0) & (source < exposure.names.own(exposure.num_nodes))
    pairs = torch.stack([source[sent], recipient[sent]])
    return coalesce(pairs, num_nodes=exposure.num_nodes)


def check_graph_data(exposure: Exposure, data: Any) -> Any:
    """``data`` with dense features, once it has the exposed graph's entries and, if any, finite
    features."""
    require_nodes(exposure, "this repair")
    entries, x = getattr(data, "edge_index", None), getattr(data, "x", None)
    if isinstance(x, Tensor) and x.layout != torch.strided:
        data = copy(data)
        data.x = x = x.to_dense()
    whole = isinstance(entries, Tensor) and entries.dtype in (torch.int32, torch.int64)
    if not whole or entries.dim() != 2 or entries.shape[0] != 2:  # type: ignore[union-attr]
        kind = exposure.names.recipient
        wanted = (
            f"a Data of the {kind!r} nodes alone: their x, and an edge_index between them"
            if exposure.names.by_type
            else "the graph that was exposed"
        )
        raise InputError(f"data has no edge_index [2, E]; pass {wanted}")
    least, most = (int(entries.min()), int(entries.max())) if entries.numel() else (0, -1)  # type: ignore[union-attr]
    if least < 0:
        raise InputError(f"data.edge_index holds {least}; nodes are counted from 0")
    if x is not None and (not isinstance(x, Tensor) or x.dim() != 2):
        raise InputError("data.x is not a table [N, F]; pass the graph that was exposed")
    nodes = exposure.num_nodes if x is None else x.shape[0]
    nodes = most + 1 if most >= exposure.num_nodes else nodes
    if nodes != exposure.num_nodes:
        raise InputError(
            f"data has {nodes} nodes but the exposure has {exposure.num_nodes}; "
            "pass the graph that was exposed"
        )
    if x is not None and not bool(torch.isfinite(x).all()):
        raise InputError("data.x holds NaN or infinite values; no repair can read them")
    return data


def around(exposure: Exposure, train: Targets, val: Targets) -> tuple[Exposure, Targets, Targets]:
    """The exposure of the targets alone where they read a small part of a large graph.

    A target's inputs are its own terms, so it sees the same as in the whole graph. Dropout goes by
    the numbers of terms, which are new ones: other channels are dropped, as with another seed.
    """
    if exposure.head is not None or exposure.num_terms < LARGE:
        return exposure, train, val
    if train.truths is not None or train.shares is not None:  # tables by recipient
        return exposure, train, val
    asked = torch.zeros(exposure.num_recipients, dtype=torch.bool, device=train.positions.device)
    for targets in (train, val):
        asked[targets.positions] = True
    ends = exposure.segments[:: exposure.num_groups]
    if int(ends.diff()[asked].sum()) > SHARE * exposure.num_terms:
        return exposure, train, val
    chosen = asked.nonzero().view(-1)
    place = asked.cumsum(0) - 1

    def moved(targets: Targets) -> Targets:
        positions: Tensor = place[targets.positions]
        return targets._replace(positions=positions)

    return focus(exposure, chosen).exposure, moved(train), moved(val)


# Learning from targets ---------------------------------------------------------------------------


class RepairTrainee(Trainee):
    """A repair over its training targets, in one batch or in shuffled minibatches.

    A member's batches, their order and its dropout follow from the seed, the epoch and the step
    alone, and it learns only in steps that hold one of its targets: who else is in the stack does
    not matter.
    """

    def __init__(
        self,
        parameters: dict[str, Tensor],
        tables: Callable[[Parameters], Any],
        predict: Predict,
        train: Targets,
        val: Targets,
        *,
        dropout: float,
        batch_size: int | None,
        seed: int,
    ) -> None:
        self.parameters = parameters
        # Other precisions go the plain way, which asks the device how many terms there are.
        self.captures = all(value.dtype == torch.float32 for value in parameters.values())
        self.tables, self.predict = tables, predict
        self.val, self.dropout = val, dropout
        longest = train.positions.shape[1]
        self.batch = longest if batch_size is None else min(batch_size, longest)
        self.steps_per_epoch = -(-longest // self.batch)
        self.train = _padded(train, self.steps_per_epoch * self.batch)
        self.weights = _batch_weights(self.train, self.batch)
        if train.shares is not None:
            self.weights = self._shares(self.train.positions) * self.train.real
        # One tensor, so that a step picks positions and labels at once.
        self.ordered = torch.stack(self.train[:2])
        self.positions, self.labels = self.ordered
        place = train.positions.device
        # On the device, where the steps of a captured CUDA graph count them on; each is a launch.
        self.epoch, self.step, self.stream = (
            torch.zeros((), dtype=torch.long, device=place) for _ in range(3)
        )
        self.places = torch.arange(self.batch, device=place)
        self.start = (seed * SEED_STRIDE) & LOW

    def trunk(self) -> Any:
        return self.tables(self.parameters)

    def begin_epoch(self) -> None:
        """A new order of every member's real targets; padding stays behind.

        What fits into one batch keeps its order, as it would alone.
        """
        self.epoch.add_(1)
        self.step.zero_()
        if self.steps_per_epoch == 1:
            return
        self.stream.copy_(self._stream() - SEEDS_A_STEP)
        torch.arange(-self.batch, 0, out=self.places)
        place = torch.arange(self.train.positions.shape[1], device=self.epoch.device)
        shuffled = row_hash(self._stream() - 1, place).expand_as(self.train.positions)
        keys = torch.where(self.train.sizes.unsqueeze(1) > self.batch, shuffled, place)
        order = (keys + (LOW + 1) * ~self.train.real).argsort(dim=1, stable=True)
        # Into the same memory, which the steps of a captured CUDA graph go on reading.
        torch.gather(self.train.positions, 1, order, out=self.positions)
        torch.gather(self.train.labels, 1, order, out=self.labels)

    def _stream(self) -> Tensor:
        """Where this step's random numbers begin."""
        return self.start + self.epoch * EPOCH_STRIDE + self.step * SEEDS_A_STEP

    def _next_stream(self) -> Tensor:
        """The same, counted on from the step before."""
        return self._stream() if self.steps_per_epoch == 1 else self.stream.add_(SEEDS_A_STEP)

    def losses(self, trunk: Any) -> Tensor:
        noise = Noise(self.dropout, self._next_stream()) if self.dropout else None
        targets, labels, weights = self._next_batch()
        logits = self.predict(self.parameters, trunk, targets, noise)
        if self.train.truths is not None:
            chosen = label_likelihood(logits, self.train.truths[targets])
        else:
            chosen = logits.log_softmax(2).gather(2, labels.unsqueeze(2)).squeeze(2)
        return -(chosen * weights.to(chosen.dtype)).sum(1)

    def learning(self) -> Tensor | None:
        """Whether a member had a target in the batch before: not past the end of its own."""
        if self.steps_per_epoch == 1:
            return None
        return self.places[:1] < self.train.sizes

    def _next_batch(self) -> tuple[Tensor, ...]:
        """Positions, labels and weights of the batch that comes next, each [S, L]."""
        if self.steps_per_epoch == 1:
            return self.positions, self.labels, self.weights
        self.places.add_(self.batch)
        self.step.add_(1)
        positions, labels = self.ordered.index_select(2, self.places)
        weights = self.weights.index_select(1, self.places)
        if self.train.shares is not None:  # they travel with their nodes
            weights = self._shares(positions) * (weights > 0)
        return positions, labels, weights

    def _shares(self, positions: Tensor) -> Tensor:
        """Of the loss; a batch's sum stands for the epoch's, however many steps a member has."""
        assert self.train.shares is not None
        own_steps = -(-self.train.sizes // self.batch)
        return self.train.shares.gather(1, positions) * own_steps.unsqueeze(1)

    def scores(self, trunk: Any) -> Tensor:
        logits = self.predict(self.parameters, trunk, self.val.positions, None)
        if self.val.truths is not None:
            return micro_scores(logits > 0, self.val.truths[self.val.positions], self.val.real)
        return ((logits.argmax(2) == self.val.labels) & self.val.real).sum(1)


def label_likelihood(logits: Tensor, truths: Tensor) -> Tensor:
    """Mean log-likelihood [S, L] of a target's known labels, each of them a coin.

    Of logits and truths [S, L, K], which are 0, 1, or NaN where unknown.
    """
    known = ~truths.isnan()
    signs = torch.where(truths == 1, 1.0, -1.0).to(logits.dtype)
    likelihoods = torch.where(known, logsigmoid(signs * logits), 0.0)
    return likelihoods.sum(2) / known.sum(2).clamp(min=1)


def _padded(targets: Targets, length: int) -> Targets:
    extra = length - targets.positions.shape[1]
    index, labels = (
        torch.cat([values, values[:, :1].expand(-1, extra)], dim=1) for values in targets[:2]
    )
    return targets._replace(positions=index, labels=labels)


def _batch_weights(targets: Targets, batch: int) -> Tensor:
    """[S, L]: 1 / (real targets in the batch) on real targets, so that a batch's loss is a mean."""
    real = targets.real
    counts = real.view(real.shape[0], -1, batch).sum(2, keepdim=True).clamp(min=1)
    return (real.view(real.shape[0], -1, batch) / counts).view_as(real)
