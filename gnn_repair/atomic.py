"""Files written whole or not at all, and what killed runs leave behind."""

from __future__ import annotations

import errno
import hashlib
import os
import platform
import re
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
"""Seconds after which another machine's temporary file counts as left behind: whether its process
lives cannot be asked from here, and no file takes a day to write."""

_TEMPORARY = re.compile(r"\.gnn-repair-([0-9a-f]{12})-(\d{1,10})-[0-9a-f]{16}\.partial")
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_CHOICES = {
    errno.EACCES, errno.EEXIST, errno.EINVAL, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG,
    errno.ENOENT, errno.ENOTDIR, errno.EPERM, errno.EROFS,
}  # fmt: skip
"""Errors that another path would not meet: the caller's choice. The rest is the machine's fault."""


def as_path(path: str | Path) -> Path:
    """``path`` as a :class:`Path`; anything else is rejected."""
    if not isinstance(path, str | os.PathLike) or "\0" in str(path):
        said = repr(path) if isinstance(path, str) else type(path).__name__
        raise InputError(f"{said:.80} is no path; give a string or a Path")
    return Path(path)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside ``path`` that takes its place when the block succeeds.

    Until then what was at ``path`` stays as it was. The new file gets the permissions of the one
    it replaces, else those that the umask leaves.
    """
    path = check_target(path)
    temporary = path.parent / _temporary_name()
    try:
        mode = _mode_of(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        sweep(path.parent)
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        if mode is None:
            mode = stat.S_IMODE(temporary.stat().st_mode)
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
    folder = root / _temporary_name()
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def check_target(path: str | Path) -> Path:
    """A path that a file can be written to, as far as one can tell before writing it.

    A folder cannot be replaced, and a device must not be.
    """
    target = as_path(path)
    try:
        there, is_file, is_folder = target.exists(), target.is_file(), target.is_dir()
        folders = [folder for folder in target.absolute().parents if folder.exists()]
    except OSError as error:
        raise cannot_write(target, error) from error
    if is_folder:
        raise InputError(f"{target} is a folder; name a file")
    if there and not is_file:
        raise InputError(f"{target} is no regular file; name another")
    if not folders[0].is_dir():
        raise InputError(f"cannot write {target}: {folders[0]} is a file; choose another folder")
    if not os.access(folders[0], os.W_OK | os.X_OK):
        raise InputError(f"cannot write {target}: {folders[0]} is not writable; choose another")
    return target


def cannot_write(path: Path, error: OSError | ValueError) -> GnnRepairError:
    """Why a file was not written, as one sentence."""
    reason, number = getattr(error, "strerror", None) or error, getattr(error, "errno", None)
    said = f"cannot write {str(path)[:200]}: {reason}"
    if number in _CHOICES or isinstance(error, ValueError):
        return InputError(f"{said}; choose another folder or name")
    remedy = "make room" if number in _FULL else "check the disk"
    return ResourceError(f"{said}; {remedy}, then run again")


def _mode_of(path: Path) -> int | None:
    """Permissions of the file at ``path``, None where there is none."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    return stat.S_IMODE(mode) if stat.S_ISREG(mode) else None


def _flush(path: Path) -> None:
    """Force the content to the disk, so that a full one is noticed before the old file goes."""
    handle = os.open(path, os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# What killed runs leave behind --------------------------------------------------------------------


def _temporary_name() -> str:
    return f".gnn-repair-{_place()}-{os.getpid()}-{secrets.token_hex(8)}.partial"


@cache
def _place() -> str:
    """Where a process number means the same process: this machine, this boot, this container."""
    parts = [platform.node()]
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text())
        parts.append(str(Path("/proc/self/ns/pid").stat().st_ino))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


@cache
def sweep(folder: Path) -> None:
    """Remove what dead processes left half-written in ``folder``; once a process is enough."""
    with suppress(OSError):
        for entry in list(os.scandir(folder)):
            match = _TEMPORARY.fullmatch(entry.name)
            if match and _left_behind(match[1], int(match[2]), entry):
                _remove(Path(entry.path))


def _left_behind(place: str, process: int, entry: os.DirEntry[str]) -> bool:
    if place == _place() and os.name == "posix":
        return not _alive(process)
    return time.time() - entry.stat(follow_symlinks=False).st_mtime > ABANDONED


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # somebody else's
        return True
    return True


def _remove(path: Path) -> None:
    with suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()
