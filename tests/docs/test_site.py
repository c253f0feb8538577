"""The site fetches nothing, and what it shows fits a telephone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

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
