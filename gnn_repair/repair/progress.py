"""How fitting goes: a line that is written over, or Python's own logging."""

from __future__ import annotations

import logging
import sys
from types import TracebackType
from typing import Any, TextIO, TypeVar

from gnn_repair.errors import InputError
from gnn_repair.training import Progress, ProgressCallback, check_progress

LOG = logging.getLogger("gnn_repair.repair")
"""Epochs at DEBUG, what was learned at INFO."""
QUARTERS = 4
"""Lines of a whole run where they cannot be written over, such as a file or a pipe."""
T = TypeVar("T")


class Listener:
    """Hears how a repair is fitted and tells whoever wants to know."""

    def __init__(
        self, title: str, on_progress: Any, progress: Any, outputs: str = "classes"
    ) -> None:
        check_progress(on_progress)
        if not isinstance(progress, bool):
            raise InputError(f"progress is {progress!r:.60}; give True or False")
        self.title, self.own, self.outputs = title, on_progress, outputs
        # A program without a terminal may have no stream for errors at all.
        shown = progress and sys.stderr is not None
        self.line = ProgressLine(title, sys.stderr, outputs) if shown else None

    @property
    def callback(self) -> ProgressCallback | None:
        """What the loop calls; None where nobody listens, so that it need not look."""
        heard = self.own is not None or self.line is not None or LOG.isEnabledFor(logging.DEBUG)
        return self._hear if heard else None

    def _hear(self, progress: Progress) -> None:
        if self.own is not None:
            self.own(progress)
        if self.line is not None:
            self.line.show(progress)
        LOG.debug("%s: %s", self.title, in_words(progress, self.outputs))

    def told(self, fitted: T) -> T:
        """The repair itself, once what it learned has been said."""
        LOG.info("%s", fitted)
        return fitted

    def __enter__(self) -> Listener:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.line is not None:
            self.line.close()


def in_words(progress: Progress, outputs: str = "classes") -> str:
    """Such as ``epoch 40 of 200, 2 members training, 61.5 validation nodes right``.

    Before the first epoch was scored nothing is said of a score; of labels it is their micro-F1.
    """
    members = "1 member" if progress.active == 1 else f"{progress.active} members"
    text = f"epoch {progress.epoch} of {progress.epochs}, {members} training"
    if progress.best < 0:
        return text
    if outputs == "labels":
        return f"{text}, validation micro-F1 {100 * progress.best:.1f} %"
    return f"{text}, {progress.best:g} validation nodes right"


class ProgressLine:
    """One line in a terminal or below a notebook's cell, some lines elsewhere."""

    def __init__(self, title: str, stream: TextIO, outputs: str = "classes") -> None:
        self.title, self.stream, self.outputs = title, stream, outputs
        self.live = stream.isatty() or in_notebook()
        self.width = self.quarter = 0

    def show(self, progress: Progress) -> None:
        """Say where fitting stands."""
        text = f"{self.title}: {in_words(progress, self.outputs)}"
        if self.live:
            # Blanks cover what was there before; a carriage return is the only way that both know.
            self.stream.write("\r" + text.ljust(self.width))
            self.width = len(text)
        else:
            quarter = QUARTERS * progress.epoch // max(1, progress.epochs)
            if quarter <= self.quarter:
                return
            self.quarter = quarter
            self.stream.write(text + "\n")
        self.stream.flush()

    def close(self) -> None:
        """End the line."""
        if self.live and self.width:
            self.stream.write("\n")
            self.stream.flush()


def in_notebook() -> bool:
    """Whether this runs in a notebook's kernel."""
    shell = sys.modules.get("IPython")
    running = shell.get_ipython() if shell is not None else None
    return running is not None and hasattr(running, "kernel")
