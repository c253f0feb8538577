"""What a written page holds."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import numpy as np


def payload_of(path: Path) -> dict[str, Any]:
    """The page's own data."""
    found = re.search(r'id="payload">(.*?)</script>', path.read_text(encoding="utf-8"), re.S)
    assert found is not None
    content: dict[str, Any] = json.loads(found[1])
    return content


def decoded(entry: dict[str, str]) -> Any:
    """One array, by the type that it names."""
    return np.frombuffer(base64.b64decode(entry["data"]), "<" + entry["type"])


def arrays_of(path: Path) -> dict[str, Any]:
    """All arrays of a page."""
    return {name: decoded(entry) for name, entry in payload_of(path)["arrays"].items()}
