"""Running the real model on reweighted messages and comparing with β + Σ λ ℓ."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch_geometric.nn import MessagePassing

from gnn_repair.exposure.mixtures import Mixture, aggregator_factor
from gnn_repair.exposure.probes import centre, deviation
from gnn_repair.exposure.products import ProductCall
from gnn_repair.exposure.recording import Trace, Watch
from gnn_repair.exposure.sites import Call, Site
from gnn_repair.exposure.slices import slices
from gnn_repair.exposure.value import Exposure

DRAWS = 2
"""Random λ that a model is run on: the second costs a run and shows what a coefficient drawn near
zero hid in the first."""
LARGE = 1 << 20
"""Terms beyond which one draw is enough: it gives every node random coefficients."""
LARGEST_MESSAGES = 1 << 26
"""Numbers in the messages of a propagate beyond which its aggregate is replaced instead: messages
of 256 MB in float32 are held several times over while the model runs."""


def random_admissible(exposure: Exposure, seed: int) -> Tensor:
    """Random λ ≥ 0 [T] with every group's mass: m_g times shares drawn anew."""
    shape = (1, exposure.num_terms)
    draws = torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    # Powers spread the shares, so that single terms come to dominate some of the groups.
    # The smallest share is a thousandth of the largest: no term is left untried.
    draws = draws.pow_(3).add_(1e-3).to(exposure.coefficients.device)
    ratio = exposure.mass / exposure.masses(draws).clamp(min=torch.finfo(torch.float64).tiny)
    return draws.view(-1).mul_(torch.repeat_interleave(ratio.view(-1), exposure.segments.diff()))


def certify(
    watch: Watch,
    exposure: Exposure,
    order: Tensor | None,
    mixtures: Sequence[Mixture],
    trace: Trace,
    centred: bool,
) -> float:
    """Largest |model(λ) − z(λ)| / max(1, |z|) over nodes and random admissible λ."""
    worst: list[Tensor] = []
    for draw in range(DRAWS if exposure.num_terms < LARGE else 1):
        coefficients = random_admissible(exposure, seed=draw)
        # The model sees λ in its own precision, and so must the prediction.
        coefficients = coefficients.to(exposure.coefficients.dtype)
        placed = coefficients
        if order is not None:
            placed = torch.empty_like(coefficients)
            placed[order] = coefficients
        seen = reweighted_run(watch, placed, mixtures, trace)
        expected = exposure.logits(coefficients.unsqueeze(0))[0]
        frozen = exposure.frozen_logits[0]
        for some in slices(*seen.shape):
            pair = seen[some].double(), expected[some]
            pair = (centre(pair[0]), centre(pair[1])) if centred else pair
            worst.append(deviation(*pair, frozen[some]).max())
    return float(torch.stack(worst).max())  # NaN where the model gave one, which no limit allows


def reweighted_run(
    watch: Watch, coefficients: Tensor, mixtures: Sequence[Mixture], trace: Trace
) -> Tensor:
    by_site = {call.site: call for call in trace.calls}
    replaced: dict[Site, Tensor] = {}
    messages: dict[Site, Tensor] = {}
    entries: dict[Site, Tensor] = {}
    parts = torch.split(coefficients, [mixture.rows.numel() for mixture in mixtures])
    for mixture, part in zip(mixtures, parts, strict=True):
        call = None if mixture.by_value else by_site.get(mixture.site)
        for site in mixture.silenced:
            replaced.setdefault(site, torch.zeros_like(trace.values[site]))
        if isinstance(call, ProductCall):
            _add_entries(entries, call, mixture, part)
        elif call is not None and _fits(call):
            _add_messages(messages, call, mixture, part)
        else:
            _add_value(replaced, trace.values[mixture.site], mixture, part)
    return watch.run(replaced, messages, entries)


def _fits(call: Call) -> bool:
    return (
        call.num_entries * (call.value.numel() // call.num_nodes) <= LARGEST_MESSAGES
        and type(call.conv).aggregate is MessagePassing.aggregate
    )


def _add_messages(
    messages: dict[Site, Tensor], call: Call, mixture: Mixture, coefficients: Tensor
) -> None:
    """Put ± λ h, before the aggregator's factor, into the entries behind a group's terms."""
    _, recipients, _ = call.entries
    factor, _ = aggregator_factor(call, recipients)
    if call.site not in messages:
        messages[call.site] = _of_others(call, recipients.numel())
    entries = slice(None) if mixture.entries is None else mixture.entries
    scale = coefficients * mixture.sign
    scale = scale if factor is None else scale / factor[entries]
    message = scale.unsqueeze(1) * mixture.states[mixture.rows]
    messages[call.site][entries, mixture.block] += message


def _of_others(call: Call, entries: int) -> Tensor:
    """Messages [T, B, D] to other node types, as they are; zero where recipients' own will be."""
    if call.placement is None or call.placement.rows is None:
        return call.value.new_zeros((entries, *call.blocks.shape[1:]))
    found = call.messages().clone()
    for part in call.placement.parts:
        found[slice(None) if part.entries is None else part.entries] = 0
    return found


def _add_entries(
    entries: dict[Site, Tensor], call: ProductCall, mixture: Mixture, coefficients: Tensor
) -> None:
    """Put ± λ into the matrix, at the entries behind a group's terms."""
    if call.site not in entries:
        entries[call.site] = coefficients.new_zeros(call.entries[0].numel())
    place = slice(None) if mixture.entries is None else mixture.entries
    entries[call.site][place] = coefficients * mixture.sign


def _add_value(
    replaced: dict[Site, Tensor], like: Tensor, mixture: Mixture, coefficients: Tensor
) -> None:
    if mixture.site not in replaced:
        replaced[mixture.site] = torch.zeros_like(like)
    replaced[mixture.site][:, mixture.block] += mixture.value(coefficients)
    if mixture.held is not None:
        replaced[mixture.site] += mixture.held
