"""The tutorials are run anew, and what they print is what they show."""

from __future__ import annotations

import json
import os

import pytest
from shown_output import assert_alike

from tools.docs.notebooks import as_markdown, executed, notebooks, printed

pytest.importorskip("nbclient", reason="runs notebooks")
TUTORIALS = notebooks()
pytestmark = pytest.mark.skipif(not TUTORIALS, reason="not in a checkout")


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_prints_what_it_shows(path, tmp_path):
    if path not in TUTORIALS[:2] and not os.environ.get("GNN_REPAIR_LONG"):
        pytest.skip("runs for a quarter of a minute; GNN_REPAIR_LONG=1 runs it")
    shown = json.loads(path.read_text(encoding="utf-8"))["cells"]
    found = executed(path, tmp_path).cells
    assert len(found) == len(shown) > 5
    for number, (old, new) in enumerate(zip(shown, found, strict=True)):
        if new.cell_type == "code":
            assert_alike(printed(new), printed(old), f"{path.name}, cell {number}")
            assert _pictures(new) == _pictures(old)


def _pictures(cell) -> int:
    return sum("image/png" in output.get("data", {}) for output in cell["outputs"])


def test_as_a_page_it_shows_code_outputs_and_pictures(tmp_path):
    page = tmp_path / "one.ipynb"
    cells = [
        {"cell_type": "markdown", "source": ["# Title"]},
        {
            "cell_type": "code",
            "source": ["print(1)"],
            "outputs": [
                {"output_type": "stream", "name": "stdout", "text": ["1\n"]},
                {"output_type": "display_data", "data": {"image/png": "QUJD", "text/plain": "x"}},
            ],
        },
    ]
    page.write_text(json.dumps({"cells": cells}), encoding="utf-8")
    assert as_markdown(page).splitlines() == [
        *("# Title", "", "```python", "print(1)", "```", "", "```", "1", "```", ""),
        "![What the cell draws](data:image/png;base64,QUJD)",
    ]
