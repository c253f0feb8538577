"""The lowest versions that pyproject.toml allows, as constraints; those of a name, if one is given.

PyTorch is not among the constraints: it is installed before, as a build for CPUs.
"""

import re
import sys
import tomllib
from pathlib import Path

root = Path(__file__).parents[1]
project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
extras = project["optional-dependencies"]
asked = [*project["dependencies"], *extras["parquet"], *extras["ray"], *extras["gurobi"]]
lowest = dict(re.fullmatch(r"([\w.-]+)>=([\w.]+)", line).groups() for line in asked)
names = sys.argv[1:] or [name for name in lowest if name != "torch"]
for name in names:
    print(f"{name}=={lowest[name]}")
