"""Models of one test, by what their forward does."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any

from torch import nn


class Made(nn.Module):
    """Its layers by name, and ``forward(self, …)``, whose parameters are the model's."""

    def __init__(self, forward: Callable[..., Any], **layers: nn.Module) -> None:
        super().__init__()
        for name, layer in layers.items():
            self.add_module(name, layer)
        self.forward = MethodType(forward, self)
