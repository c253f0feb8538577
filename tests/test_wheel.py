"""The wheel holds everything that the package reads at run time, and no developers' apparatus."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.skipif(not (ROOT / "pyproject.toml").exists(), reason="not in a checkout")
def test_data_files_and_the_page_are_in_the_wheel(tmp_path):
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path)]
    subprocess.run([*build, str(ROOT)], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    packed = set(zipfile.ZipFile(wheel).namelist())
    package = ROOT / "gnn_repair"
    needed = {
        str(path.relative_to(ROOT))
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert needed <= packed
    assert {"gnn_repair/paper.json", "gnn_repair/raw_files.json"} <= packed
    assert any(name.startswith("gnn_repair/reporting/page/") for name in packed)
    outside = {name.split("/")[0] for name in packed} - {"gnn_repair"}
    assert all(name.endswith(".dist-info") for name in outside)
    assert not any(re.search(r"bench|campaign|selftest", name) for name in packed)
