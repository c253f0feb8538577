"""A mapping that cannot be changed and, unlike ``MappingProxyType``, can be copied and pickled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class FrozenDict(Mapping[str, T], Generic[T]):
    """Values by name, fixed when it is built."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, T]) -> None:
        self._values = dict(values)

    def __getitem__(self, name: str) -> T:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"{{{', '.join(self._values)}}}"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._values,)
