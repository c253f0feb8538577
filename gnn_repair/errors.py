"""What can go wrong, as one tree.

::

    GnnRepairError              everything this package raises on purpose
    ├── InputError              an argument, a name or a value is not acceptable (also ValueError)
    │   ├── DatasetError        a dataset is missing, damaged or malformed
    │   ├── SplitError          a split does not exist, is empty or overlaps
    │   └── FileFormatError     a saved file is damaged, foreign or does not match
    ├── ResourceError           the disk is full or a cluster is gone; nobody typed anything wrong
    ├── ExposureRefused         a model does not end in a nonnegative mixture of messages
    └── DeviceError             the asked-for device is absent or out of memory

Each message is one sentence that names the value at fault and what to do about it. The command
line prints it and exits with code 2, or 1 for a :class:`ResourceError`. A failed *solve* is never
an exception: it is a status in the solution.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class GnnRepairError(Exception):
    """Everything this package raises on purpose."""


class InputError(GnnRepairError, ValueError):
    """An argument, a name or a value is not acceptable."""


class DatasetError(InputError):
    """A dataset is missing, damaged or malformed."""


class SplitError(InputError):
    """A split does not exist, is empty or overlaps."""


class FileFormatError(InputError):
    """A saved file is damaged, foreign or does not match what it is used for."""


class ResourceError(GnnRepairError):
    """The disk is full or a cluster is gone: the same command may succeed later."""


class ExposureRefused(GnnRepairError):  # noqa: N818  (a refusal is an answer, not a fault)
    """A model does not end in a nonnegative mixture of messages; the message says why."""


class DeviceError(GnnRepairError):
    """The asked-for device is absent or out of memory."""


# What somebody who mistyped a name probably meant

NEAR = 0.6
"""Share of letters that must agree, difflib's own choice: 'gin' suggests 'gcn', 'ogbn' nothing."""


def suggestion(name: str, known: Iterable[str]) -> str:
    """``did you mean 'gcn'?`` or, where nothing is near, ``choose from`` and all of them."""
    names = list(known)
    near = closest(name, names)
    return f"choose from {', '.join(names)}" if near is None else f"did you mean {near!r}?"


def kind_of(value: object) -> str:
    """What somebody gave: ``an int``, ``a Tensor``, ``None``."""
    name = type(value).__name__
    return "None" if value is None else f"a{'n' * (name[0].lower() in 'aeiou')} {name}"


def closest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is nearest; None where none is near."""
    typed = name.lower()
    near = difflib.get_close_matches(typed, known, n=5, cutoff=NEAR)
    # Two letters that changed places are the likeliest slip, and difflib counts them twice.
    return next((each for each in near if sorted(each) == sorted(typed)), near[0] if near else None)
