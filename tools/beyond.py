"""Write the tables of docs/results/beyond.md anew: ``python -m tools.beyond`` or ``make beyond``.

Records of the ladder, of the retrained control and of the paper's own methods may lie in files of
their own; each gain is over the frozen model of the same record.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gnn_repair.atomic import replacing
from gnn_repair.results.records import Run, RunRecord
from gnn_repair.results.rendering import RENDERERS
from gnn_repair.results.store import PackedResults
from gnn_repair.study import PAPER, make_tables

ROOT = Path(__file__).parents[1]
PAGE, RESULTS = ROOT / "docs" / "results" / "beyond.md", ROOT / "results"
FILES = (
    "ladder.jsonl",
    "retrained.jsonl",
    "minesweeper.jsonl",
    "tolokers.jsonl",
    "paper.jsonl",
)
"""In this order: what an earlier file holds of a run is not taken from a later one."""
LINE = "<!-- below this line: make beyond -->\n\n"
TABLES = ("beyond", "lost-evidence", "lost-evidence-by-class")


def gathered(folder: Path = RESULTS) -> list[RunRecord]:
    """The records of all files that there are, each method of a run once."""
    seen: set[tuple[Run, str]] = set()
    out = []
    for name in FILES:
        if not (folder / name).exists():
            continue
        for record in PackedResults(folder / name).records(PAPER.digest):
            new = {k: v for k, v in record.methods.items() if (record.run, k) not in seen}
            seen |= {(record.run, key) for key in new}
            out.append(replace(record, methods=new))
    return out


def written(text: str, folder: Path = RESULTS) -> str:
    """The page with the tables of these records below its line."""
    tables = make_tables(gathered(folder), TABLES)
    return text[: text.index(LINE)] + LINE + RENDERERS["markdown"](tables)


def main() -> None:
    """Rewrite the page."""
    text = written(PAGE.read_text(encoding="utf-8"))
    with replacing(PAGE) as temporary:
        temporary.write_text(text, encoding="utf-8")
        temporary.chmod(0o644)


if __name__ == "__main__":
    main()
