"""What stands in a file of the user's own: ``FILE.py:NAME`` on the command line."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from gnn_repair.errors import InputError


def is_own(name: str) -> bool:
    """Whether a name says where a backbone is written."""
    return ".py:" in name


def short_name(name: str) -> str:
    """What a store calls it: the part behind the colon."""
    return name.rpartition(":")[2] if is_own(name) else name


def load_own(name: str) -> dict[str, Any]:
    """One ``FILE.py:NAME`` by its short name."""
    return {short_name(name): _loaded(name)}


def _loaded(name: str) -> Any:
    """NAME of the file, which is run."""
    path, _, attribute = name.rpartition(":")
    given = getattr(_module(Path(path)), attribute, None)
    if given is None:
        raise InputError(f"{path} has no {attribute!r:.60}; name a class or function that it has")
    return as_architecture(given, name, attribute)


def as_architecture(given: Any, name: str, title: str) -> Any:
    """What a study takes as a backbone.

    A Backbone (class or instance), an OwnNetwork, or a module's class or a function that is called
    with the numbers of features and classes.
    """
    from torch import nn

    from gnn_repair.backbones import Backbone, OwnNetwork

    if isinstance(given, Backbone | OwnNetwork) or (
        isinstance(given, type) and issubclass(given, Backbone)
    ):
        return given
    if callable(given) and not isinstance(given, nn.Module):
        return OwnNetwork(given, title=title)
    raise InputError(
        f"{name} is a {type(given).__name__}; name a Backbone, an OwnNetwork, or what builds a "
        "network from the numbers of features and classes"
    )


def made_by(factory: str) -> tuple[Any, Any, Any]:
    """Model, data and which nodes, by a function or tuple: ``FILE.py:NAME`` or ``MODULE:NAME``."""
    place, _, name = factory.rpartition(":")
    if not place or not name.isidentifier():
        raise InputError(f"{factory!r:.80} is not FILE.py:NAME, such as models.py:trained")
    sys.path.insert(0, "")  # as python -m does: the folder one is in
    try:
        module = _module(Path(place)) if is_own(factory) else importlib.import_module(place)
        made = getattr(module, name)
        made = made() if callable(made) else made
    except InputError:
        raise
    except (Exception, SystemExit) as error:  # one that exits with 0 must not pass for success
        raise InputError(f"{factory} raised {in_one_line(error)}") from error
    finally:
        with suppress(ValueError):  # the factory may have changed the path itself
            sys.path.remove("")
    if not isinstance(made, tuple) or len(made) not in (2, 3):
        raise InputError(
            f"{factory} gave a {type(made).__name__}; return (model, data) or with nodes"
        )
    return (*made, None) if len(made) == 2 else made


def _module(path: Path) -> Any:
    if not path.is_file():
        raise InputError(f"{path} is no file; give FILE.py:NAME")
    known = sys.modules.get(path.stem)
    if known is not None:
        file = getattr(known, "__file__", None)
        if file is not None and Path(file).resolve() == path.resolve():
            return known  # run once, so that two of its classes are of one module
        raise InputError(
            f"{path} would hide the module {path.stem!r}, which is in use; give the file another "
            "name"
        )
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Processes that run cases unpickle classes by their module's name.
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        sys.modules.pop(path.stem, None)
        raise InputError(f"{path} cannot be run: {in_one_line(error)}") from error
    return module


def in_one_line(error: BaseException) -> str:
    """What was raised, in one line of bounded length."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
