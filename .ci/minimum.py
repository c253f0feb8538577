"""The lowest versions that pyproject.toml allows, as constraints; PyTorch as in constraints.txt."""

import re
import tomllib
from pathlib import Path

root = Path(__file__).parents[1]
project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
pinned = (root / "constraints.txt").read_text(encoding="utf-8").splitlines()
extras = project["optional-dependencies"]
asked = [*project["dependencies"], *extras["parquet"], *extras["ray"], *extras["gurobi"]]
for requirement in asked:
    name, lowest = re.fullmatch(r"([\w.-]+)>=([\w.]+)", requirement).groups()
    # An old PyTorch wheel for Linux brings gigabytes of CUDA; a tried one stands in.
    known = [line for line in pinned if line.startswith("torch==")]
    print(known[0] if name == "torch" else f"{name}=={lowest}")
