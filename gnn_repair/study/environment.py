"""What a result was made with."""

from __future__ import annotations

import functools
import platform
import subprocess
from importlib import metadata
from pathlib import Path

import torch

import gnn_repair

PACKAGES = ("torch", "torch-geometric", "numpy", "numba", "highspy")


def environment(device: torch.device) -> dict[str, str]:
    """Versions, device and source revision."""
    return {
        "gnn-repair": gnn_repair.__version__,
        **source(),
        "python": platform.python_version(),
        **{name: _version(name) for name in PACKAGES},
        "system": f"{platform.system()} {platform.machine()}",
        "device": _device_name(device),
    }


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type}, {torch.get_num_threads()} threads"


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "unknown"


@functools.cache
def source() -> dict[str, str]:
    """The git revision of the package's own checkout, and whether its files are that revision's."""
    folder = Path(gnn_repair.__file__).parent
    if not (folder.parent / ".git").exists():
        return {"revision": "released", "source": "clean"}
    try:
        revision = _git(folder, "rev-parse", "--short=12", "HEAD")
        changed = _git(folder, "status", "--porcelain", "--", ".").splitlines()
    except (OSError, subprocess.SubprocessError):
        return {"revision": "unknown", "source": "unknown"}
    state = f"{len(changed)} files differ from the revision" if changed else "clean"
    return {"revision": revision, "source": state}


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=folder, capture_output=True, text=True, check=True, timeout=10
    )
    return done.stdout.strip()
