"""The site fetches nothing, and what it shows fits a telephone."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch

import gnn_repair
from gnn_repair.oracle import solve
from tests.campaigns.lp_families import Numbers, exposure_of
from tools.docs import pictures

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "mkdocs.yml"

pytestmark = pytest.mark.skipif(not CONFIG.exists(), reason="not in a checkout")


def test_no_setting_makes_pages_fetch():
    """A repo_url asks GitHub for stars; without a shim of ours Material fetches one."""
    text = CONFIG.read_text(encoding="utf-8")
    assert not re.search(r"^repo_url:", text, re.M) and "font: false" in text
    (shim,) = re.findall(r"^    - (\S*iframe-worker\S*)$", text, re.M)
    assert (ROOT / "docs" / shim).is_file()
    assert not re.search(r"https?://", (ROOT / "docs" / shim).read_text(encoding="utf-8"))


def test_a_long_formula_scrolls_by_itself():
    pytest.importorskip("mkdocs", reason="builds the site")
    pytest.importorskip("latex2mathml", reason="builds the site")
    from tools.docs.pages import on_page_content

    block = on_page_content(r'<div class="arithmatex">\[x + y\]</div>')
    assert block.startswith('<div style="overflow-x: auto"><math') and block.endswith("</div>")
    inline = on_page_content(r'<span class="arithmatex">\(x\)</span>')
    assert inline.startswith("<math") and "overflow" not in inline


@pytest.mark.parametrize("drawn", ["CAN", "CANNOT"])
def test_the_drawing_of_the_concepts_shows_what_the_oracle_answers(drawn):
    messages = getattr(pictures, drawn)
    table = np.column_stack([np.zeros(3), -messages])  # the class, then what each rival gets of it
    exposure = exposure_of(Numbers(np.array([[3]]), pictures.FROZEN, table, np.zeros((1, 3))))
    solution = solve(exposure, torch.tensor([0]))
    coefficients, weights, point = pictures.best(messages)
    assert bool(solution.reachable[0]) == (drawn == "CAN")
    np.testing.assert_allclose(solution.margin[0], point, rtol=1e-12)
    np.testing.assert_allclose(coefficients @ messages, point, rtol=1e-12)
    np.testing.assert_allclose(solution.rival_weights[0], [0, *weights], rtol=1e-9)
    shown = (ROOT / "docs/images/concepts-evidence.svg").read_text(encoding="utf-8")
    assert f"{abs(point.min()):.2f}" in shown


def test_the_reference_holds_every_public_name():
    pytest.importorskip("mkdocs", reason="builds the site")
    from tools.docs.pages import REFERENCE

    named = [name for _, names in REFERENCE.values() for name in names]
    assert sorted(named) == sorted(set(gnn_repair.__all__) - {"__version__"})
