"""Datasets for the cases of a study."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch_geometric.data import Data

from gnn_repair.datasets import check_data, load_dataset


@dataclass
class Named:
    """Datasets by name; the last one is kept, because cases of a dataset follow each other."""

    root: str | Path | None = None
    draw: str = "torch"
    _last: tuple[str, Data] | None = field(default=None, repr=False)

    def __call__(self, name: str) -> Data:
        if self._last is None or self._last[0] != name:
            draw: Any = self.draw  # checked with the protocol
            self._last = (name, load_dataset(name, self.root, draw=draw))
        return self._last[1]

    def __getstate__(self) -> dict[str, Any]:
        """A worker elsewhere loads its own."""
        return {"root": self.root, "draw": self.draw, "_last": None}


@dataclass(frozen=True)
class HeldDatasets:
    """Datasets that the user holds."""

    datasets: Mapping[str, Data]

    def __call__(self, name: str) -> Data:
        data = self.datasets[name]
        check_data(data)
        return data
