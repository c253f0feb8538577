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
    check_target(path)
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


def check_target(path: str | Path) -> Path:
    """A path that a file can be written to, as far as one can tell before writing it.

    A folder cannot be replaced, and a device must not be.
    """
    try:
        target = Path(path)
        there, is_file, is_folder = target.exists(), target.is_file(), target.is_dir()
        folders = [folder for folder in target.absolute().parents if folder.exists()]
    except (OSError, TypeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        shown = f"{str(path)[:80]!r}"
        raise InputError(f"cannot write {shown}: {reason}; choose another name") from error
    if is_folder:
        raise InputError(f"{target} is a folder; name a file")
    if there and not is_file:
        raise InputError(f"{target} is no regular file; name another")
    if not folders[0].is_dir():
        raise InputError(f"cannot write {target}: {folders[0]} is a file; choose another folder")
    if not os.access(folders[0], os.W_OK | os.X_OK):
        raise InputError(f"cannot write {target}: {folders[0]} is not writable; choose another")
    return target


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""What is wrong with a disk, not with a name."""


def cannot_write(path: Path, error: OSError | ValueError) -> GnnRepairError:
    """Why a file was not written, as one sentence."""
    reason = getattr(error, "strerror", None) or error
    shown = f"{str(path)[:200]}"
    if getattr(error, "errno", None) in _FULL:
        return ResourceError(f"cannot write {shown}: {reason}; make room, then run again")
    return InputError(f"cannot write {shown}: {reason}; choose another folder or name")
