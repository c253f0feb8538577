"""The embedding that a model's last linear layer reads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import Linear

from gnn_repair.exposure.exactness import centre
from gnn_repair.exposure.model_output import two_classes


@dataclass
class Head:
    """What the linear layer that ran last read and gave."""

    read: Tensor | None = None
    gave: Tensor | None = None

    def embedding(self, logits: Tensor, binary: bool) -> Tensor | None:
        """What it read, [N, k], if what it gave are the logits (up to a shift per node).

        Asked once: what it gave is forgotten, for on a large graph it is large.
        """
        given, self.gave = self.gave, None
        if given is None or self.read is None:
            return None
        gave = two_classes(given) if binary else given
        if gave.shape != logits.shape:
            return None
        # The same numbers but for a few float32 operations (a log_softmax, a sum) between them.
        same = torch.allclose(centre(gave), centre(logits), rtol=1e-4, atol=1e-5)
        if binary and not same:  # of labels a sigmoid may follow, which is taken off
            same = torch.allclose(gave[:, 1:].sigmoid(), logits[:, 1:], rtol=1e-4, atol=1e-5)
        return self.read if same and self.read.dim() == 2 else None


@contextmanager
def last_linear(model: nn.Module) -> Iterator[Head]:
    """While open, remember the linear layer that ran last."""
    head = Head()

    def remember(module: nn.Module, args: Any, output: Any) -> None:
        if args and isinstance(args[0], Tensor) and isinstance(output, Tensor):
            head.read, head.gave = args[0], output

    layers = [module for module in model.modules() if isinstance(module, nn.Linear | Linear)]
    handles = [layer.register_forward_hook(remember) for layer in layers]
    try:
        yield head
    finally:
        for handle in handles:
            handle.remove()
