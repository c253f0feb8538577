"""Tutorials are notebooks with their outputs: run them anew, and show them as pages of the site."""

from __future__ import annotations

import base64
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "tutorials"
SECONDS = 900
"""A cell that takes longer hangs."""


def notebooks() -> list[Path]:
    """The tutorials, in order."""
    return sorted(FOLDER.glob("*.ipynb"))


def executed(path: Path, folder: Path) -> Any:
    """The notebook as it comes out of a run in a folder of its own."""
    import nbformat
    from nbclient import NotebookClient

    os.environ["OMP_NUM_THREADS"] = "1"  # two kernels side by side would wait for each other
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(folder)}}
    NotebookClient(notebook, timeout=SECONDS, kernel_name="python3", resources=resources).execute()
    return notebook


def printed(cell: Any) -> str:
    """What a code cell printed or showed as text."""
    parts = []
    for output in cell.get("outputs", []):
        if output["output_type"] == "stream" and output["name"] == "stdout":
            parts.append("".join(output["text"]))
        elif "data" in output and "image/png" not in output["data"]:
            parts.append("".join(output["data"].get("text/plain", "")) + "\n")
    return "".join(parts)


def as_markdown(path: Path) -> str:
    """The notebook as a page of the site."""
    lines: list[str] = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            lines += [source, ""]
            continue
        lines += ["```python", source, "```", ""]
        if shown := printed(cell).rstrip():
            lines += ["```", shown, "```", ""]
        for output in cell["outputs"]:
            if image := output.get("data", {}).get("image/png"):
                code = "".join(image).strip()
                lines += [f"![What the cell draws](data:image/png;base64,{code})", ""]
    return "\n".join(lines)


def _tidied(notebook: Any) -> Any:
    """Without what differs from run to run and says nothing: times, identities, warnings."""
    notebook.metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    for number, cell in enumerate(notebook.cells):
        cell.id, cell.metadata = f"cell-{number}", {}
        if cell.cell_type == "code":
            cell.outputs = [o for o in cell.outputs if o.get("name") != "stderr"]
            for output in cell.outputs:
                _without_addresses(output)
    return notebook


def _without_addresses(output: Any) -> None:
    text = output.get("data", {}).get("text/plain")
    if text is not None:
        output["data"]["text/plain"] = re.sub(r" at 0x[0-9a-f]+", "", text)
        output["data"].pop("text/html", None)
    if image := output.get("data", {}).get("image/png"):
        assert base64.b64decode(image)


def main(names: list[str]) -> None:
    """Run the named notebooks, or all, and write their outputs into them."""
    import tempfile

    import nbformat

    from gnn_repair.atomic import replacing

    for path in notebooks():
        if names and path.stem not in names:
            continue
        with tempfile.TemporaryDirectory() as folder:
            notebook = _tidied(executed(path, Path(folder)))
        with replacing(path) as temporary:
            temporary.write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")
            temporary.chmod(0o644)
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main(sys.argv[1:])
