"""A browser that complains, and pages that several tests look at, written once."""

from __future__ import annotations

import pytest
import torch

from gnn_repair.reporting import gather, report
from tests.helpers.report.browser import missing, open_browser
from tests.helpers.report.report_worlds import Moved, Tilted, make_exposure


@pytest.fixture(scope="session")
def chromium():
    if missing():
        pytest.skip(missing())
    with open_browser() as opened:
        yield opened


@pytest.fixture
def browser(chromium):
    """Nothing goes wrong in it, and nothing is fetched from anywhere else."""
    chromium.messages(), chromium.requests()
    chromium.resize()
    yield chromium
    assert chromium.messages() == []
    own = ("file:", "data:", "about:", "blob:", "http://127.0.0.1:")
    assert [url for url in chromium.requests() if not url.startswith(own)] == []


@pytest.fixture(scope="session")
def demo(tmp_path_factory):
    """A page with every chart of a run, and the evidence it was written from."""
    exposure, y = make_exposure(300, 6)
    edges = torch.randint(300, (2, 900), generator=torch.Generator().manual_seed(1))
    far = exposure.frozen_logits[0] + 30 * Moved(2).shift(exposure)[0]
    repairs = {"reweighting": Tilted(), "set_translation": Moved(), "far": far}
    path = tmp_path_factory.mktemp("demo") / "report.html"
    report(exposure, y, path, repairs=repairs, edge_index=edges, selection="test nodes")
    return path, gather(exposure, y, repairs=repairs, edge_index=edges)


@pytest.fixture(scope="session")
def small(tmp_path_factory):
    """A random exposure with three groups."""
    exposure, y = make_exposure(groups=3)
    own = {"reweighting": Tilted(), "set_translation": Moved(), "mine": torch.rand(40, 4)}
    path = tmp_path_factory.mktemp("small") / "report.html"
    return report(exposure, y, path, repairs=own), gather(exposure, y, repairs=own)
