"""``expose``: a trained model as a nonnegative mixture of its final messages."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, overload

import torch
from torch import Tensor, nn
from torch_geometric.nn import DirGNNConv, MessagePassing

from gnn_repair.backbones import Frozen
from gnn_repair.errors import ExposureRefused, GnnRepairError, InputError
from gnn_repair.exposure.assembly import Words, assemble
from gnn_repair.exposure.certification import certify
from gnn_repair.exposure.diagnosis import bends, reason, refuse_residual, why_rows
from gnn_repair.exposure.embedding import last_linear
from gnn_repair.exposure.final_aggregation import FinalAggregation, find_final
from gnn_repair.exposure.fingerprint import fingerprint_of_model
from gnn_repair.exposure.known_aggregation import UnplannedError
from gnn_repair.exposure.model_call import Forward, check_expected, one_graph
from gnn_repair.exposure.model_on_data import ModelOnData, on_data
from gnn_repair.exposure.model_output import check_numbers, read_output
from gnn_repair.exposure.model_state import (
    changing,
    forget_propagations,
    lazy_parameters,
    refuse_compiled,
    refuse_untrained,
    resting,
)
from gnn_repair.exposure.no_aggregation import unread, why_nothing
from gnn_repair.exposure.outputs import Outputs, check_outputs
from gnn_repair.exposure.pooling.batches import as_batch, batch_of_one, batches_of
from gnn_repair.exposure.pooling.from_model import Wanted, expose_again, expose_pooled
from gnn_repair.exposure.pooling.joining import joined
from gnn_repair.exposure.probes import EXACT, deviation, residual_limit
from gnn_repair.exposure.record.exposing import RecordWanted, second_opinion
from gnn_repair.exposure.recording import Trace, Watch
from gnn_repair.exposure.sampled import of_subgraph
from gnn_repair.exposure.tails.from_model import expose_tailed
from gnn_repair.exposure.tails.logit_form import TAKEN_OFF
from gnn_repair.exposure.tails.model_replay import replay_of
from gnn_repair.exposure.tails.tailed import TailedExposure
from gnn_repair.exposure.value import Exposure


@overload
def expose(model: Frozen) -> Exposure: ...
@overload
def expose(
    model: nn.Module,
    data: Any,
    *,
    hops: Literal["paths", "last"] = "paths",
    forward: Forward | None = None,
    tolerance: float | None = None,
    expected: Any = None,
    node_type: str | None = None,
    outputs: Outputs | None = None,
) -> Exposure | TailedExposure: ...
def expose(
    model: Frozen | nn.Module,
    data: Any = None,
    *,
    hops: Literal["paths", "last"] = "paths",
    forward: Forward | None = None,
    tolerance: float | None = None,
    expected: Any = None,
    node_type: str | None = None,
    outputs: Outputs | None = None,
) -> Exposure | TailedExposure:
    """Write a trained model's logits as z⁰ = β + Σ_g A_g L_g, or as z⁰ = T(o + Σ_g A_g H_g).

    Args:
        model: a frozen backbone, or any trained PyG model that classifies nodes, or graphs.
        data: the PyG data the model runs on, or any object with such fields; for a model that
            classifies graphs a batch, a list or dataset of graphs, or a loader that does not
            shuffle; not needed for a frozen backbone or a model whose forward takes nothing.
        hops: for convolutions that propagate several times (SGConv, TAGConv, APPNP, …):
            ``paths`` exposes all sources with their path sums (entries of Â^p), ``last`` only
            the last propagate.
        forward: how to call the model, ``forward(model, data) -> logits [N, C]``; by default the
            arguments are found in data by the names of the model's parameters.
        tolerance: the largest certified residual to accept; 1e-5 for float32 models and 1e-12
            for float64 unless given.
        expected: what you know the model to give, logits [N, C] or predicted classes [N]; where
            the model as it is called here differs from it, nothing is exposed.
        node_type: in a graph of several node types (HeteroData) the one that is classified; not
            needed where only one has labels, or only one has outputs.
        outputs: what the model gives: rival ``classes``, ``labels`` (each there where its own
            logit is positive) or plain ``values``. Unless given, data.y decides: several zeros
            and ones a node are labels, other real numbers are values, anything else classes.

    Returns:
        The exposure, certified by running the model on randomly reweighted messages. A model that
        does more than affine maps to a node after its last aggregation gives a
        :class:`TailedExposure`.

    Raises:
        ExposureRefused: the model does not end in such a mixture; the message names what is in
            the way.
        InputError: the model cannot be called as it is meant to be; the message says what to pass.
    """
    if hops not in ("paths", "last"):
        raise InputError(f"hops is {hops!r}; choose 'paths' or 'last'")
    check_outputs(outputs)
    if isinstance(model, Frozen):
        from gnn_repair.exposure.from_backbone import expose_frozen

        if outputs not in (None, "classes"):
            raise InputError(f"a frozen backbone's outputs are classes, not {outputs}")
        exposure = expose_frozen(model)
        if expected is not None:
            _check_members(expected, exposure)
        return exposure
    if isinstance(model, type):
        raise InputError(f"model is the class {model.__name__}; pass a trained instance of it")
    if not isinstance(model, nn.Module):
        raise InputError(f"model is a {type(model).__name__}; pass a torch module or a Frozen")
    model = _unwrapped(model)
    refuse_compiled(model)
    batches = batches_of(data)
    if batches is not None and len(batches) > 1:
        calling = (forward, node_type)
        return _expose_batches(model, batches, hops, calling, tolerance, expected, outputs)
    data = one_graph(batches[0] if batches else data, model, forward)
    lazy = lazy_parameters(model)
    probing = partial(
        _expose_graph, model, lazy=lazy, calling=(forward, node_type), hops=hops,
        tolerance=tolerance, expected=expected, outputs=outputs,
    )  # fmt: skip
    try:
        return probing(data if forward is not None else as_batch(data, model))
    except InputError as error:
        raised = error.__cause__ is not None and forward is None
        alone = batch_of_one(data) if raised else None
        if alone is None:
            raise
        try:  # a graph alone, and the model reads its batch vector
            return probing(alone)
        except GnnRepairError:
            raise error from error.__cause__


def _expose_graph(
    model: nn.Module,
    data: Any,
    *,
    lazy: Any,
    calling: tuple[Forward | None, str | None],
    hops: str,
    tolerance: float | None,
    expected: Any,
    outputs: Outputs | None,
) -> Exposure | TailedExposure:
    with resting(model), torch.no_grad():
        subject = on_data(model, data, *calling)
        if lazy:
            subject.call()
            refuse_untrained(model, lazy)
        found = expose_probing(subject, hops, tolerance, expected, outputs)[0]
    return of_subgraph(found, data)


def _expose_batches(
    model: nn.Module,
    batches: Sequence[Any],
    hops: str,
    calling: tuple[Forward | None, str | None],
    tolerance: float | None,
    expected: Any,
    outputs: Outputs | None,
) -> Exposure | TailedExposure:
    """Each batch exposed and certified by itself; what is expected is of all their graphs."""
    parts: list[Exposure | TailedExposure] = []
    with resting(model), torch.no_grad():
        subject = on_data(model, batches[0], *calling)
        first, finding = expose_probing(subject, hops, tolerance, outputs=outputs)
        if first.graph_starts is None:
            raise InputError(
                f"{type(model).__name__} classifies nodes, and data is {len(batches)} batches of "
                "graphs; pass one of them"
            )
        parts.append(first)
        same: Any = first.outputs
        for batch in batches[1:]:
            subject = on_data(model, batch, *calling)
            try:
                if not finding.splits:  # found by the record, not by probes
                    raise UnplannedError
                known = Wanted(hops, tolerance, known=finding, outputs=same)
                parts.append(expose_again(subject, known))
            except UnplannedError:
                parts.append(expose_probing(subject, hops, tolerance, outputs=same)[0])
    exposure = joined(parts)
    if expected is not None:
        told = exposure.frozen_logits[0].float()
        binary = told.shape[1] == 2 and not bool(told[:, 0].any())  # (0, z) of one logit z
        if TAKEN_OFF in exposure.called:  # and what is expected are the model's probabilities
            told = told.sigmoid() if not binary else told.sigmoid() * told.new_tensor([0.0, 1.0])
        check_expected(expected, told, binary, exposure.called, noun="graph")
    return exposure


def _unwrapped(model: nn.Module) -> nn.Module:
    """The model itself where it stands in a wrapper that only spreads batches over devices."""
    if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        inner: nn.Module = model.module
        return inner
    return model


def _check_members(expected: Any, exposure: Exposure) -> None:
    if exposure.num_members > 1:
        raise InputError(
            f"expected is for one model and the backbone has {exposure.num_members} members; "
            "train one split or leave it out"
        )
    check_expected(expected, exposure.frozen_logits[0].float(), False, "a frozen backbone")


LARGEST_RECORD = 1 << 22
"""Terms beyond which no second opinion is taken: the record's own index tensors would grow to
hundreds of megabytes."""


def expose_probing(
    subject: ModelOnData,
    hops: str,
    tolerance: float | None = None,
    expected: Any = None,
    outputs: Outputs | None = None,
    replayed: bool = False,
) -> tuple[Exposure | TailedExposure, FinalAggregation]:
    """The certified exposure, and what was found on the way; with its replay where asked for.

    Probes find it, and the record of one run judges what kind it is.
    """
    found, finding = _found_by_probing(subject, hops, tolerance, expected, outputs, replayed)
    if subject.graph is not None or found.num_terms > LARGEST_RECORD:
        return found, finding
    forget_propagations(subject.model)
    names = {mixture.site.name for mixture in (*finding.mixtures, *finding.nodewise)}
    wanted = RecordWanted(hops, tolerance, None, _outputs_of(found))
    said = second_opinion(subject, wanted, found, names)
    if not isinstance(said, tuple):
        return said.exposure, FinalAggregation(replay=said.replay if replayed else None)
    beside = ", ".join(str(one) for one in said if one.beside)
    if beside:
        mixture = found.aggregate if isinstance(found, TailedExposure) else found
        text = f"{mixture.fixed}; held as it is: {beside}"
        object.__setattr__(mixture, "fixed", text)  # not yet seen by anybody
    return found, finding


def _outputs_of(found: Exposure | TailedExposure) -> Any:
    return found.outputs


def _found_by_probing(
    subject: ModelOnData,
    hops: str,
    tolerance: float | None,
    expected: Any,
    outputs: Outputs | None,
    replayed: bool,
) -> tuple[Exposure | TailedExposure, FinalAggregation]:
    model, call = subject.model, subject.call
    output = call()
    if subject.graph is None:
        wanted = Wanted(hops, tolerance, expected, outputs=outputs)
        pooled = expose_pooled(subject, output, wanted)
        if pooled is not None:
            return pooled
    why = partial(why_rows, model, call)
    read = read_output(output, subject.nodes, why, subject.classes, outputs, subject.labelled)
    logits, called = read(output), call.text + read.text
    check_numbers(logits, model, subject.fields)
    residual_limit(tolerance, logits.dtype)
    anchored = read.outputs != "classes"
    if expected is not None:
        check_expected(expected, logits[:, int(anchored) :], read.binary, called)
    cached = forget_propagations(model)
    watch = subject.watch(lambda: read(call()), logits.shape[0])
    with watch.installed():
        with last_linear(model) as head:
            trace = watch.trace()
        subject.keep_relations(trace)
        if not trace.calls:
            raise ExposureRefused(why_nothing(watch, logits, subject.fields))
        _check_repeatable(watch, logits, trace, cached)
        if torch.equal(trace.output, logits):
            trace.output = logits  # one table instead of two
        finding = find_final(watch, trace, hops)
        if not finding.mixtures and not finding.nodewise:
            raise ExposureRefused(_why_not(watch, trace, finding))
        embedding = head.embedding(logits, read.binary)
        fingerprint = fingerprint_of_model(model, hops, logits.shape[1] - anchored)
        words = words_of(subject, finding, embedding, called, fingerprint)
        finding.mixtures = subject.finished(finding.mixtures)
        finding.nodewise = subject.finished(finding.nodewise)
        if not finding.mixtures:
            tailed = expose_tailed(watch, trace, finding.nodewise, words, tolerance)
            finding.replay = tailed.replay if replayed else None
            return read.finished(tailed), finding
        # Earlier layers' arguments are large and of no further use.
        trace.calls = [made for made in trace.calls if made.site in finding.tails]
        exposure, order = assemble(finding.mixtures, finding.tails, logits, words)
        residual = certify(watch, exposure, order, finding.mixtures, trace, finding.centred)
        if not residual <= residual_limit(tolerance, logits.dtype) and _has_tail(
            watch, trace, finding
        ):
            # Affine as far as probes went, and bent where other messages lead.
            finding.nodewise, finding.mixtures = finding.mixtures, []
            finding.tails.clear()
            tailed = expose_tailed(watch, trace, finding.nodewise, words, tolerance)
            finding.replay = tailed.replay if replayed else None
            return read.finished(tailed), finding
        if replayed:
            finding.replay = replay_of(watch, finding.mixtures, trace, order)
        _check_residual(watch, trace, residual, tolerance, finding)
    # Not yet seen by anybody, and validated a moment ago: no need to build it anew.
    object.__setattr__(exposure, "residual", residual)
    return read.finished(exposure), finding


def words_of(
    subject: ModelOnData,
    finding: FinalAggregation,
    embedding: Tensor | None,
    called: str,
    fingerprint: tuple[str, ...],
) -> Words:
    """What the exposure says of its model."""
    mixtures, model = finding.mixtures or finding.nodewise, subject.model
    root = _has_root(model, [mixture.site.name for mixture in mixtures])
    origin, fixed = type(model).__name__, finding.fixed
    return Words(origin, fixed, root, embedding, called, fingerprint, subject.names)


def _why_not(watch: Watch, trace: Trace, finding: FinalAggregation) -> str:
    if watch.unread_sum:
        return unread(watch)
    if finding.left_out:
        return finding.left_out[0]
    if finding.idle:
        return f"the logits do not depend on what {finding.idle[0]} aggregates"
    return (
        f"{reason(watch, trace)}, so the logits are no mixture of its messages; expose an earlier "
        "stage through forward=, or train without that"
    )


def _check_repeatable(watch: Watch, logits: Tensor, trace: Trace, cached: bool) -> None:
    gap = float(deviation(trace.output, logits).max()) if trace.output.shape == logits.shape else 1
    if gap <= 10 * EXACT[logits.dtype]:
        return
    if cached:
        raise ExposureRefused(
            "a convolution's cached propagation gives other logits than this graph does; "
            "pass the data it was cached on, or clear the cache"
        )
    raise ExposureRefused(changing(watch.model, watch.forward, logits, gap))


def _has_tail(watch: Watch, trace: Trace, finding: FinalAggregation) -> bool:
    sites = list(dict.fromkeys(mixture.site for mixture in finding.mixtures))
    plain = not finding.centred and not any(mixture.silenced for mixture in finding.mixtures)
    return plain and bends(watch, trace, sites)


def _check_residual(
    watch: Watch, trace: Trace, residual: float, tolerance: float | None, finding: FinalAggregation
) -> None:
    sites = list(dict.fromkeys(mixture.site for mixture in finding.mixtures))
    refuse_residual(watch, trace, sites, "β + Σ λ ℓ", residual, tolerance)


ROOTS = ("root_weight", "lin_root", "root", "lin3", "res", "eps", "lins_r", "combine_root")
"""Attributes by which convolutions show that a node's own input enters beside the aggregate."""


def _has_root(model: nn.Module, names: Sequence[str]) -> bool:
    modules = dict(model.named_modules())
    parents = [modules.get(name.rpartition(".")[0]) for name in names]
    holders = [modules[name] for name in names if isinstance(modules[name], MessagePassing)]
    holders += [parent for parent in parents if isinstance(parent, DirGNNConv)]
    marks = [getattr(holder, attribute, None) for holder in holders for attribute in ROOTS]
    return any(isinstance(m, Tensor | nn.Module) or m is True or m in ("sum", "cat") for m in marks)
