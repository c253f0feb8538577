"""Files written whole or not at all, and what killed runs leave behind."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from gnn_repair.errors import GnnRepairError, InputError, ResourceError

ABANDONED = 24 * 3600.0
"""Seconds after which a temporary file counts as left behind by a killed run: no file takes a day
to write."""
_TEMPORARY = ".gnn-repair-{}.partial"

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_CHOICES = {
    errno.EACCES, errno.EEXIST, errno.EINVAL, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG,
    errno.ENOENT, errno.ENOTDIR, errno.EPERM, errno.EROFS,
}  # fmt: skip
"""Errors that another path would not meet: the caller's choice. The rest is the machine's fault."""


def as_path(path: str | Path) -> Path:
    """``path`` as a :class:`Path` that the system can look up; anything else is rejected."""
    if not isinstance(path, str | os.PathLike) or "\0" in str(path):
        wrong = repr(path) if isinstance(path, str) else type(path).__name__
        raise InputError(f"{wrong:.80} is no path; give a string or a Path")
    try:
        Path(path).exists()
    except OSError as error:
        reason = f"{error.strerror}; choose another folder or name"
        raise InputError(f"{str(path)[:80]!r} cannot be used: {reason}") from error
    return Path(path)


@contextmanager
def replacing(path: Path, *, folders: bool = False) -> Iterator[Path]:
    """A temporary path beside ``path`` that takes its place when the block succeeds.

    Until then what was at ``path`` stays as it was. The new file gets the permissions of the one
    it replaces, else those that the umask leaves. With ``folders`` missing folders are made.
    """
    path = check_target(path, folders=folders)
    temporary = _temporary_in(path.parent)
    try:
        before = path if path.exists() else temporary
        path.parent.mkdir(parents=True, exist_ok=True)
        sweep(path.parent)
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        mode = stat.S_IMODE(before.stat().st_mode)
        yield temporary
        _flush(temporary)
        temporary.chmod(mode)  # some libraries make the file anew, with permissions of their own
        temporary.replace(path)
    except OSError as error:
        raise cannot_write(path, error) from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


@contextmanager
def scratch_folder(root: Path) -> Iterator[Path]:
    """A folder below ``root`` that is gone afterwards."""
    sweep(root)
    folder = _temporary_in(root)
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def check_target(path: str | Path, *, folders: bool = False) -> Path:
    """A path that a file can be written to, as far as one can tell before writing it.

    A folder cannot be replaced, and a device must not be. A missing folder is a typing error, but
    with ``folders``: where the folder is itself what is written.
    """
    target = as_path(path)
    if target.is_dir():
        raise InputError(f"{target} is a folder; name a file")
    if target.exists() and not target.is_file():
        raise InputError(f"{target} is no regular file; name another")
    parents = target.absolute().parents
    folder = next(folder for folder in parents if folder.exists())
    if not folder.is_dir():
        raise InputError(f"cannot write {target}: {folder} is a file; choose another folder")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"cannot write {target}: {folder} is not writable; choose another folder")
    if not folders and folder != parents[0]:
        raise InputError(f"cannot write {target}: there is no folder {parents[0]}; make it first")
    return target


def cannot_write(path: Path, error: OSError | ValueError) -> GnnRepairError:
    """Why a file was not written, as one sentence."""
    reason, number = getattr(error, "strerror", None) or error, getattr(error, "errno", None)
    sentence = f"cannot write {str(path)[:200]}: {reason}"
    if number in _CHOICES or isinstance(error, ValueError):
        return InputError(f"{sentence}; choose another folder or name")
    remedy = "make room" if number in _FULL else "check the disk"
    return ResourceError(f"{sentence}; {remedy}, then run again")


def _flush(path: Path) -> None:
    """Force the content to the disk, so that a full one is noticed before the old file goes."""
    handle = os.open(path, os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# What killed runs leave behind --------------------------------------------------------------------


def _temporary_in(folder: Path) -> Path:
    return folder / _TEMPORARY.format(secrets.token_hex(16))


@cache
def sweep(folder: Path) -> None:
    """Remove what killed runs left half-written in ``folder``; once a process is enough."""
    for path in folder.glob(_TEMPORARY.format("*")):
        with suppress(OSError):
            if time.time() - path.lstat().st_mtime > ABANDONED:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
