"""What tells one frozen model from another, whatever graph it is shown."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch
from torch import Tensor, nn

DIGITS = 16
"""Of the digest: 64 bits, far beyond what could coincide by accident."""


def digest_of_weights(kind: str, classes: int, weights: Iterable[tuple[str, Tensor]]) -> str:
    """A digest of how a model is exposed, its classes and its weights by name.

    Floating-point weights count by value, so a model and its copy in higher precision or on
    another device are the same.
    """
    digest = hashlib.sha256(f"{kind}, {classes} classes".encode())
    for name, value in sorted(weights, key=lambda pair: pair[0]):
        if value.layout != torch.strided:
            digest.update(f"{name} {value.layout} {tuple(value.shape)}".encode())
        for part in dense_parts(value.detach()):
            plain = torch.view_as_real(part) if part.is_complex() else part
            plain = plain.cpu().double() if plain.is_floating_point() else plain.cpu()
            digest.update(f"{name} {plain.dtype} {tuple(plain.shape)}".encode())
            digest.update(plain.contiguous().numpy().tobytes())
    return digest.hexdigest()[:DIGITS]


def dense_parts(tensor: Tensor) -> tuple[Tensor, ...]:
    """The dense tensors that hold a tensor's numbers; of a sparse one its places and values."""
    if tensor.layout == torch.strided:
        return (tensor,)
    if tensor.layout == torch.sparse_coo:
        tensor = tensor.coalesce()
        return tensor.indices(), tensor.values()
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    return tensor.ccol_indices(), tensor.row_indices(), tensor.values()


def fingerprint_of_model(model: nn.Module, hops: str, classes: int) -> tuple[str, ...]:
    """The fingerprint of a user's model: its class, the way of exposure, parameters and buffers.

    What a forward function reads from elsewhere cannot be known here.
    """
    held = [
        (name, value)
        for name, value in model.state_dict().items()
        if isinstance(value, Tensor) and not nn.parameter.is_lazy(value)
    ]
    return (digest_of_weights(f"{type(model).__name__} by {hops}", classes, held),)
