"""What makes a process ready sooner."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collection_paused() -> Iterator[None]:
    """No garbage collection inside; afterwards, what is alive counts as old.

    Loading torch and compiling kernels make a million objects that all stay. Looking through them
    for garbage again and again takes a fifth of the time.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if gc.get_freeze_count() == 0:
            # Moves everything to the oldest generation, which is looked through last.
            gc.freeze()
            gc.unfreeze()
        if collecting:
            gc.enable()
