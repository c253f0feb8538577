"""Files written whole or not at all; loads nothing heavy."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gnn_repair.errors import GnnRepairError, InputError, ResourceError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside ``path`` that takes its place when the block succeeds."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:100]}.")
    except (OSError, ValueError) as error:
        raise cannot_write(path, error) from error
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.replace(path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise cannot_write(path, error) from error
        raise


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EIO)
"""What is wrong with a disk, not with a name."""


def cannot_write(path: Path, error: OSError | ValueError) -> GnnRepairError:
    """Why a file was not written, as one sentence."""
    reason = getattr(error, "strerror", None) or error
    shown = f"{str(path)[:200]}"
    if getattr(error, "errno", None) in _FULL:
        return ResourceError(f"cannot write {shown}: {reason}; make room, then run again")
    return InputError(f"cannot write {shown}: {reason}; choose another folder or name")
