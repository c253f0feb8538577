"""The repairs written out literally: one row x_{v,a} per term, one member at a time."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from gnn_repair.exposure import Exposure
from gnn_repair.repair.inputs import RepairInputs


@dataclass
class Literal:
    """Every element of S_v of every recipient, roots at the end."""

    x: Tensor
    """x_{v,a}, [K, 3d + 3C + 2]."""
    owner: Tensor
    """[K]: the recipient's position."""
    omega: Tensor
    """[K]."""
    own: Tensor
    """[h_v, z_v], [n, d + C]."""
    terms: int
    """Adjustable elements; they come first."""


def build(exposure: Exposure, member: int) -> Literal:
    """x_{v,a} as the definition has it."""
    one = exposure.member(member)
    h, z = one.state[0], one.frozen_logits[0].to(one.state.dtype)
    owner = torch.repeat_interleave(one.terms_by_recipient.indptr.diff())
    row = one.rows.long()
    h_a, z_a = one.messages[0, one.message_rows[row].long()], of_senders(one)[row]
    omega = one.coefficients[0]
    if one.root:
        everyone = torch.arange(one.num_recipients)
        owner = torch.cat([owner, everyone])
        h_a, z_a = torch.cat([h_a, h[one.recipients]]), torch.cat([z_a, z[one.recipients]])
        omega = torch.cat([omega, torch.ones(one.num_recipients, dtype=omega.dtype)])
    h_v, z_v = h[one.recipients][owner], z[one.recipients][owner]
    norms = h_v.norm(dim=1) * h_a.norm(dim=1)
    cosine = torch.where(norms > 0, (h_v * h_a).sum(1) / norms, torch.zeros_like(norms))
    distance = (h_a - h_v).norm(dim=1)
    features = [h_v, h_a, h_a - h_v, z_v, z_a, z_a - z_v, cosine[:, None], distance[:, None]]
    own = torch.cat([h[one.recipients], z[one.recipients]], dim=1)
    return Literal(torch.cat(features, dim=1), owner, omega, own, one.num_terms)


def of_senders(one: Exposure) -> Tensor:
    """z⁰ of the sender of each table row; zeros where it is of another kind than the recipients."""
    sender, z = one.sources.long(), one.frozen_logits[0].to(one.state.dtype)
    own = (sender < one.names.own(one.num_nodes)).unsqueeze(1)
    return torch.where(own, z[sender.clamp(max=len(z) - 1)], torch.zeros_like(z[:1]))


def mlp(p: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    hidden = (x @ p[f"{name}.0.weight"] + p[f"{name}.0.bias"]).relu()
    return hidden @ p[f"{name}.2.weight"] + p[f"{name}.2.bias"]


def contexts(p: dict[str, Tensor], literal: Literal) -> Tensor:
    """c_v = [h_v, z_v, p_v, m̄_v], [n, ·]; p_v is zero for an empty set."""
    count = literal.own.shape[0]
    encoded = literal.omega[:, None] * mlp(p, "encoder", literal.x)
    summed = encoded.new_zeros(count, encoded.shape[1]).index_add(0, literal.owner, encoded)
    total = literal.omega.new_zeros(count).index_add(0, literal.owner, literal.omega)
    mean = summed / torch.where(total > 0, total, 1.0)[:, None]
    return torch.cat([literal.own, mean, total[:, None]], dim=1)


def translated(p: dict[str, Tensor], exposure: Exposure, member: int) -> Tensor:
    """z⁰ + q, [n, C]; of node translation, which has no encoder, from [h_v, z_v] alone."""
    literal = build(exposure, member)
    q = 4 * mlp(p, "head", contexts(p, literal) if "encoder.0.weight" in p else literal.own).tanh()
    frozen = exposure.frozen_logits[member, exposure.recipients].to(q.dtype)
    return frozen + q - q.mean(1, keepdim=True)


def coefficients(p: dict[str, Tensor], exposure: Exposure, member: int) -> Tensor:
    """λ, [T], group by group."""
    literal = build(exposure, member)
    x, owner = literal.x[: literal.terms], literal.owner[: literal.terms]
    inputs = torch.cat([x, contexts(p, literal)[owner]], dim=1)
    tilted = literal.omega[: literal.terms] * (4 * mlp(p, "scorer", inputs).tanh()).exp().squeeze(1)
    parts = []
    ends = exposure.segments.tolist()
    for start, stop in pairwise(ends):
        group = tilted[start:stop]
        mass = literal.omega[start:stop].sum()
        parts.append(mass * group / group.sum() if stop > start else group)
    return torch.cat(parts)


def reweighted(p: dict[str, Tensor], exposure: Exposure, member: int) -> Tensor:
    """β + Σ λ ℓ, [n, C]."""
    weights = coefficients(p, exposure, member)
    owner = torch.repeat_interleave(exposure.terms_by_recipient.indptr.diff())
    message = exposure.contributions[member, exposure.rows.long()].to(weights.dtype)
    fixed = exposure.fixed_logits[member, exposure.recipients].to(weights.dtype)
    return fixed.index_add(0, owner, weights[:, None] * message)


def random_parameters(repair, inputs) -> dict[str, torch.Tensor]:
    """Members that differ, and last layers that are not zero."""
    generator = torch.Generator().manual_seed(1)
    initial = repair.initial(inputs)
    return {
        name: value + 0.2 * torch.randn(value.shape, generator=generator).to(value)
        for name, value in initial.items()
    }


def gradients(out: torch.Tensor, leaves: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    weights = torch.cos(torch.arange(out.numel())).view_as(out).to(out)
    return list(torch.autograd.grad((out * weights).sum(), list(leaves.values())))


def check(repair, reference, exposure: Exposure, tolerance: float) -> None:
    inputs = RepairInputs(exposure)
    leaves = {
        name: value.requires_grad_() for name, value in random_parameters(repair, inputs).items()
    }
    found = repair.corrected(leaves, inputs, repair.tables(leaves, inputs), inputs.everyone, None)
    expected = torch.stack(
        [
            reference({name: value[s] for name, value in leaves.items()}, exposure, s)
            for s in range(exposure.num_members)
        ]
    )
    close = {"rtol": tolerance, "atol": tolerance * float(expected.detach().abs().max())}
    torch.testing.assert_close(found, expected, **close)
    for one, other in zip(gradients(found, leaves), gradients(expected, leaves), strict=True):
        scale = float(other.abs().max())
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance * max(1.0, scale))
