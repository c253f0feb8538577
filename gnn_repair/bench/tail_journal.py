"""Rows of a long measurement kept in a folder as they come, so that a second run goes on."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gnn_repair.errors import FileFormatError
from gnn_repair.files.headers import parse_json


@dataclass(frozen=True)
class Journal:
    """One JSON file a row; without a folder nothing is kept."""

    folder: Path | None

    def read(self, name: str) -> dict[str, Any] | None:
        """The row that was written under this name."""
        path = None if self.folder is None else self.folder / f"{name}.json"
        if path is None or not path.exists():
            return None
        try:
            row = parse_json(path.read_bytes())
        except ValueError as error:
            raise FileFormatError(f"{path} is no row of a bench; delete it: {error}") from error
        if not isinstance(row, dict):
            raise FileFormatError(f"{path} is no row of a bench; delete it")
        return row

    def write(self, name: str, row: dict[str, Any]) -> None:
        """Keep a row."""
        if self.folder is None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{name}.json"
        draft = path.with_suffix(f".{os.getpid()}.part")
        draft.write_text(json.dumps(row, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
        draft.replace(path)
