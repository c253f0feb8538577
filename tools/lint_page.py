"""``python -m tools.lint_page``: format and faults of the report page's scripts.

The scripts share one scope, so names are looked up in all of them joined, as the page holds them.
Both programs come as binaries in Python packages: nothing but pip is needed.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from gnn_repair.reporting.writing import SCRIPTS, joined_scripts

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "gnn_repair" / "reporting" / "page"
LONGEST = 100
"""Characters of a line, as in the Python code. The formatter leaves long strings as they are."""


def long_lines(text: str) -> list[int]:
    """The numbers of the lines that are too long."""
    lines = enumerate(text.split("\n"), start=1)
    return [number for number, line in lines if len(line) > LONGEST]


def program(name: str, *arguments: str) -> bool:
    """Run a program of this Python's environment; whether it found nothing."""
    path = Path(sysconfig.get_path("scripts")) / name
    return subprocess.run([str(path), *arguments], cwd=ROOT, check=False).returncode == 0


def joined_is_sound() -> bool:
    """Whether the linter finds nothing in the whole page's script."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "page.js"
        file.write_text(joined_scripts(), encoding="utf-8")
        return program("oxlint", "--config", str(ROOT / ".oxlintrc.json"), str(file))


def main() -> int:
    """Say what is wrong; 1 if anything is."""
    files = sorted(PAGE.glob("*.js"))
    sound = True
    for file in files:
        if file.name not in SCRIPTS:
            print(f"{file.name} is not in SCRIPTS of gnn_repair/reporting/writing.py")
            sound = False
        for number in long_lines(file.read_text(encoding="utf-8")):
            print(f"{file.relative_to(ROOT)}:{number}: longer than {LONGEST} characters")
            sound = False
    formatted = program("oxfmt", "--check", *map(str, files))
    return 0 if joined_is_sound() and formatted and sound else 1


if __name__ == "__main__":
    sys.exit(main())
