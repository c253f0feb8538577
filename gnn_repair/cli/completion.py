"""What the shell offers when Tab is pressed (``gnn-repair --install-completion``)."""

from __future__ import annotations

from collections.abc import Callable, Iterable


def _datasets() -> Iterable[str]:
    from gnn_repair.datasets import DATASETS

    return DATASETS


def _backbones() -> Iterable[str]:
    from gnn_repair.backbones.titles import TITLES

    return TITLES


def _methods() -> Iterable[str]:
    from gnn_repair.repair.methods import METHODS

    return ["oracle", *METHODS]


def one_of(names: Callable[[], Iterable[str]], *words: str) -> Callable[[str], list[str]]:
    """Offers the names, and words that stand for several of them."""

    def offer(incomplete: str) -> list[str]:
        return [name for name in (*names(), *words) if name.startswith(incomplete)]

    return offer


def list_of(names: Callable[[], Iterable[str]], *words: str) -> Callable[[str], list[str]]:
    """The same for the last name of a comma-separated list; none is offered twice."""

    def offer(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        chosen = before.split(",")
        offered = names() if comma else (*names(), *words)
        return [
            f"{before}{comma}{name}"
            for name in offered
            if name.startswith(last) and name not in chosen
        ]

    return offer


dataset = one_of(_datasets)
backbone = one_of(_backbones)
datasets = list_of(_datasets, "paper", "all")
backbones = list_of(_backbones, "paper", "all")
methods = list_of(_methods, "all")
protocol = one_of(lambda: ("paper", "independent"))
