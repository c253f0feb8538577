"""A GPU's kernels compiled beside the first case, by a process of its own.

Triton compiles a kernel when it is first launched, some ten seconds for all that repairs use, and
keeps it on disk. While the first case loads its data and trains its backbone, another process runs
a tiny case, so that the first one finds most kernels compiled. It is no thread: what another thread
asks of the GPU while a step is being captured as a CUDA graph spoils the capture. Nothing waits for
it, and if it fails, kernels are compiled when they are needed, as without it.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import torch
from torch_geometric.data import Data

from gnn_repair.backbones import find_backbone, train_backbone
from gnn_repair.datasets import stratified_splits
from gnn_repair.devices import choose_device
from gnn_repair.exposure import expose
from gnn_repair.kernel_cache import compiled_folder
from gnn_repair.repair import NodeTranslation, Reweighting, SetTranslation
from gnn_repair.training import WARM_UP, Budget

SAID = "first use of these kernels on a GPU: they are compiled, 10 s or more, beside the first case"
MARKER = "gpu-kernels-compiled"
"""In the folder of compiled kernels, which is another one as soon as a kernel's source changes."""


@contextmanager
def warming(device: str, say: Callable[[str], None]) -> Iterator[None]:
    """Inside, kernels are compiled by another process if they were not yet; it ends with this."""
    process = _begin(say) if _needed(device) else None
    try:
        yield
    finally:
        if process is not None and process.poll() is None:
            process.terminate()
            process.wait()


def _needed(device: str) -> bool:
    """Whether there is a GPU to be used whose kernels nobody has compiled."""
    if choose_device(device).type != "cuda":
        return False
    marker = _marker()
    return marker is not None and not marker.exists()


def _marker() -> Path | None:
    folder = compiled_folder()
    return None if folder is None else folder / MARKER


def _begin(say: Callable[[str], None]) -> subprocess.Popen[bytes] | None:
    line = [sys.executable, "-m", "gnn_repair.study.warm_up"]
    nobody = subprocess.DEVNULL
    try:
        process = subprocess.Popen(line, stdin=nobody, stdout=nobody, stderr=nobody)
    except OSError:
        return None
    say(SAID)
    return process


def compile_kernels(device: str) -> None:
    """Tiny cases with few and with many terms a node, in full batches and in minibatches."""
    # One more than before a step is captured, so that capturing happens, too.
    epochs = WARM_UP + 2
    budget = Budget(epochs, None, 1e-3, 1e-4, decoupled=True, epoch_zero=True)
    for backbone, near in (("sgc", 1), ("gcn", 1), ("gat", 12), ("sgc", 12)):
        data = _graph(near)
        short = replace(find_backbone(backbone).budget, epochs=epochs)
        frozen = train_backbone(backbone, data, (0, 1), device=device, budget=short)
        exposure, masks = expose(frozen), (data.train_mask, data.val_mask)
        for repair in (SetTranslation, Reweighting, NodeTranslation):
            # Batches of 4 read few of the messages, or with many terms a node most of them.
            for batch in (None, 4) if backbone == "sgc" else (None,):
                repair(budget=budget).fit(exposure, data.y, *masks, device=device, batch_size=batch)


def _graph(near: int, nodes: int = 48) -> Data:
    """A ring in which everyone knows the next ``near``; features wide enough to be shared."""
    own = torch.arange(nodes)
    pairs = [torch.stack([own, (own + step) % nodes]) for step in range(1, near + 1)]
    entries = torch.cat([torch.stack([own, own]), *pairs, *(pair.flip(0) for pair in pairs)], dim=1)
    x = torch.rand(nodes, 40, generator=torch.Generator().manual_seed(0))
    y = own % 3
    train, val, test = stratified_splits(y, (60, 20, 20), range(2))
    masks = {"train_mask": train, "val_mask": val, "test_mask": test}
    return Data(x=x, edge_index=entries, y=y, name="warm-up", **masks)


def main() -> None:
    """What the other process does."""
    compile_kernels("cuda")
    marker = _marker()
    if marker is not None:
        with suppress(OSError):
            marker.touch()


if __name__ == "__main__":
    main()
