"""Write the tables of docs/beyond.md anew: ``python -m tools.beyond`` or ``make beyond``."""

from __future__ import annotations

from pathlib import Path

from gnn_repair.atomic import replacing
from gnn_repair.study import PAPER, make_tables
from gnn_repair.study.packed import Packed
from gnn_repair.study.rendering import RENDERERS

ROOT = Path(__file__).parents[1]
PAGE, RECORDS = ROOT / "docs" / "beyond.md", ROOT / "results" / "ladder.jsonl"
LINE = "<!-- below this line: make beyond -->\n\n"
TABLES = ("beyond", "evidence", "evidence-by-class")


def written(text: str, records: Path = RECORDS) -> str:
    """The page with the tables of these records below its line."""
    tables = make_tables(Packed(records).records(PAPER.digest), TABLES)
    return text[: text.index(LINE)] + LINE + RENDERERS["markdown"](tables)


def main() -> None:
    """Rewrite the page."""
    text = written(PAGE.read_text(encoding="utf-8"))
    with replacing(PAGE) as temporary:
        temporary.write_text(text, encoding="utf-8")
        temporary.chmod(0o644)


if __name__ == "__main__":
    main()
