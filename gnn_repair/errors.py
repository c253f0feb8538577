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
