"""What every refusal is held to: its type, the name of what is in the way, a word of the remedy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gnn_repair.errors import GnnRepairError, InputError


@contextmanager
def refused(
    *words: str, kind: type[GnnRepairError] = InputError
) -> Iterator[pytest.ExceptionInfo[GnnRepairError]]:
    """What happens inside raises an error of this kind, whose message holds all of the words."""
    with pytest.raises(kind) as caught:
        yield caught
    lacking = [word for word in words if word not in str(caught.value)]
    assert not lacking, f"{lacking} not in: {caught.value}"
