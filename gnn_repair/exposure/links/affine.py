"""A decoder that cannot be followed step by step, found to be affine by probing it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gnn_repair.errors import ExposureRefused
from gnn_repair.exposure.exactness import EXACT, deviation, perturbation
from gnn_repair.exposure.tails.operations import Affine, Scale, TailGraph


def affine_by_probing(
    scores: Callable[[Tensor], Tensor], embedding: Tensor, refusal: Exception
) -> TailGraph:
    """z_i = G_i · e_i + b_i with a G for every link, as far as probes at random places show.

    Args:
        scores: from embeddings [M, d], a row a link, to logits [M, 1].
        embedding: the frozen ones.
        refusal: why the decoder could not be followed.
    """
    with torch.enable_grad():
        leaf = embedding.detach().clone().requires_grad_()
        logits = scores(leaf * 1)
        slope = torch.autograd.grad(logits.sum(), leaf)[0] if logits.requires_grad else None
    frozen = logits.detach().double()
    if slope is None or not _predicts(scores, embedding, frozen, slope):
        raise ExposureRefused(
            f"the decoder is not affine in the embedding of one end, and {refusal}"
        ) from refusal
    weight = slope.double()
    shift = frozen - (weight * embedding.double()).sum(1, keepdim=True)
    ones = torch.ones(1, weight.shape[1], dtype=torch.float64, device=weight.device)
    return TailGraph(
        weight.shape[1],
        (Scale((0,), weight, torch.zeros_like(ones[0])), Affine((1,), ones, shift)),
    )


def _predicts(
    scores: Callable[[Tensor], Tensor], embedding: Tensor, frozen: Tensor, slope: Tensor
) -> bool:
    """Whether G tells how logits move, half of the rows and then all of them, up and down."""
    limit = 10 * EXACT[embedding.dtype]
    for seed, sign in ((3, 1.0), (4, -1.0)):
        change = perturbation(embedding, seed).mul_(sign)
        if seed == 3:  # a link whose end stays must not move
            change[1::2] = 0
        seen = scores(embedding + change).detach().double()
        expected = frozen + (slope.double() * change.double()).sum(1, keepdim=True)
        if not bool((deviation(seen, expected, frozen) <= limit).all()):
            return False
    return True
