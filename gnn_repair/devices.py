"""Choosing a device, and saying what to do when it is absent or full."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from threading import RLock

import torch

from gnn_repair.errors import DeviceError, InputError


def choose_device(device: str | torch.device = "auto") -> torch.device:
    """The device of that name; ``"auto"`` is the GPU when there is one, else the CPU."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    chosen = parse_device(device)
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise DeviceError("CUDA was asked for but no GPU is available; use device='cpu'")
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        raise DeviceError(f"{chosen} was asked for but there are {torch.cuda.device_count()} GPUs")
    return chosen


def parse_device(device: str | torch.device) -> torch.device:
    """A device that this package runs on, whether or not this machine has it."""
    remedy = "use 'auto', 'cpu' or 'cuda'"
    if not isinstance(device, str | torch.device):
        raise InputError(f"unknown device {device!r:.60}; {remedy}")
    try:
        chosen = torch.device(device)
    except (RuntimeError, ValueError) as error:
        raise InputError(f"unknown device {device!r:.60}; {remedy}") from error
    if chosen.type not in ("cpu", "cuda"):
        raise InputError(f"device {str(device)!r} is not supported; {remedy}")
    return chosen


@contextmanager
def learning(doing: str, numbers: torch.Tensor) -> Iterator[None]:
    """Gradients are on, whatever holds outside; an out-of-memory error says which knob to turn."""
    if numbers.is_inference():
        raise InputError(
            "the numbers to learn from were made under torch.inference_mode() and can have no "
            "gradient; make them (expose the model) outside it, or under torch.no_grad()"
        )
    try:
        with torch.inference_mode(False), torch.enable_grad():
            yield
    except torch.cuda.OutOfMemoryError as error:
        raise DeviceError(
            f"out of GPU memory while {doing}; pass fewer splits at a time or use device='cpu'"
        ) from error


@contextmanager
def full_precision(*devices: torch.device) -> Iterator[None]:
    """What is computed inside keeps its own precision, whatever autocast says outside."""
    with ExitStack() as stack:
        for kind in {"cpu", *(device.type for device in devices)} - {"meta"}:
            stack.enter_context(torch.autocast(kind, enabled=False))
        yield


_SEEDING = RLock()


@contextmanager
def seeded(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """PyTorch's generators begin at ``seed`` inside, and afterwards stand where they stood.

    A GPU's generator is put back only where its ``device`` is given. Generators belong to the
    whole process, so threads take turns.
    """
    gpus = [device.index or 0] if device is not None and device.type == "cuda" else []
    with _SEEDING, torch.random.fork_rng(gpus):
        torch.manual_seed(seed)
        yield
