"""JSON read strictly, and values of exactly the types they must have."""

from __future__ import annotations

import json
import math
import reprlib
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from types import UnionType
from typing import Any, get_args, get_type_hints

from gnn_repair.errors import InputError


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text; doubled names, NaN, infinities and bad text are refused."""
    try:
        text = text.decode("utf-8") if isinstance(text, bytes) else text
        value = json.loads(
            text, object_pairs_hook=_unique, parse_constant=_refuse, parse_float=_finite
        )
        # Half of a surrogate pair can be written as an escape but never printed.
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except RecursionError as error:
        raise InputError("its JSON is nested too deeply") from error
    except ValueError as error:
        raise InputError(f"its JSON cannot be read ({error})") from error
    return value


def _unique(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{reprlib.repr(name)} occurs twice")
        found[name] = value
    return found


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is no number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{reprlib.repr(text)} is too large")
    return value


def check_fields(values: Any, hints: Mapping[str, Any], what: str) -> dict[str, Any]:
    """``values`` once it holds exactly these names with values of these types.

    Args:
        values: what was read.
        hints: name to type: JSON's own, unions with None, or a dataclass of such.
        what: what the values are, in words.
    """
    if not isinstance(values, dict):
        raise InputError(f"its {what} is {reprlib.repr(values)}, not a set of named values")
    if missing := sorted(hints.keys() - values.keys()):
        raise InputError(f"its {what} lacks {missing[0]}")
    if unknown := sorted(values.keys() - hints.keys()):
        raise InputError(f"its {what} holds {reprlib.repr(unknown[0])}, which nothing here reads")
    for name, hint in hints.items():
        if not _fits(values[name], hint, name):
            shown = reprlib.repr(values[name])
            raise InputError(f"its {name} is {shown}, not {_words(hint)}")
    return values


def dataclass_hints(kind: type) -> dict[str, Any]:
    """The types of a dataclass's fields."""
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


def _fits(value: Any, hint: Any, name: str) -> bool:
    if isinstance(hint, UnionType):
        return any(_fits(value, option, name) for option in get_args(hint))
    if is_dataclass(hint):
        return bool(check_fields(value, dataclass_hints(hint), name))  # type: ignore[arg-type]
    # A whole number is a float that JSON wrote short; True is no number.
    return type(value) is hint or (hint is float and type(value) is int)


def _words(hint: Any) -> str:
    names = {float: "a number", int: "a whole number", str: "a text", bool: "true or false"}
    names |= {list: "a list", dict: "a set of named values", type(None): "nothing"}
    options = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    return " or ".join(names.get(option, getattr(option, "__name__", "")) for option in options)
