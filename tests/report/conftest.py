"""Pages that several browser tests look at, written once."""

from __future__ import annotations

import pytest
import torch

from gnn_repair.exposure import expose
from gnn_repair.reporting import evidence_of, gather, report, report_run
from gnn_repair.results.protocol import PAPER, override
from gnn_repair.study.case import rerun
from tests.helpers.report.browser import open_browser
from tests.helpers.report.report_worlds import NASTY, Moved, Tilted, make_exposure

SETTINGS = (
    "backbones.hidden=16",
    "backbones.short.epochs=30",
    "repairs.hidden=16",
    "repairs.reweighting.epochs=10",
    "repairs.set_translation.epochs=30",
    "repairs.set_translation.learning_rate=1e-2",
)


@pytest.fixture(scope="session")
def browser():
    with open_browser() as opened:
        yield opened


@pytest.fixture(scope="session")
def demo(tmp_path_factory):
    """The built-in graph's report and the evidence it was written from."""
    run = rerun(
        "builtin",
        "gcn",
        protocol=override(PAPER, SETTINGS),
        methods=["reweighting", "set_translation"],
        device="cpu",
    )
    path = report_run(run, tmp_path_factory.mktemp("demo") / "report.html")
    return path, evidence_of(run)


@pytest.fixture(scope="session")
def small(tmp_path_factory):
    """A random exposure with three groups and names that try to be markup."""
    exposure, y = make_exposure(groups=3)
    own = {"reweighting": Tilted(), "set_translation": Moved(), "<i>mine</i>": torch.rand(40, 4)}
    path = tmp_path_factory.mktemp("small") / "report.html"
    report(exposure, y, path, repairs=own, class_names=NASTY, title="<img src=x onerror=harm()>")
    return path, gather(exposure, y, repairs=own)


@pytest.fixture(scope="session")
def binary(tmp_path_factory):
    """Two classes."""
    exposure, y = make_exposure(classes=2)
    path = tmp_path_factory.mktemp("binary") / "report.html"
    return report(exposure, y, path, repairs={"reweighting": Tilted(), "set_translation": Moved()})


@pytest.fixture(scope="session")
def nonlinear_world(tmp_path_factory):
    """A model that ends in a nonlinear head, with all three answers: page, exposure, labels."""
    from torch import nn
    from torch_geometric.data import Data
    from torch_geometric.nn import GCNConv

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(1)
            self.first, self.last = GCNConv(5, 8), GCNConv(8, 8)
            self.head = nn.Linear(8, 3)

        def forward(self, x, edge_index):
            x = self.first(x, edge_index).relu()
            return self.head(nn.functional.softplus(self.last(x, edge_index), threshold=19))

    generator = torch.Generator().manual_seed(0)
    y = torch.randint(0, 3, (30,), generator=generator)
    ends = torch.randint(0, 30, (2, 60), generator=generator)
    ends = torch.cat([ends, ends.flip(0)], 1).unique(dim=1)
    x = torch.randn(30, 5, generator=generator) + nn.functional.one_hot(y, 5)
    exposure = expose(Model(), Data(x=x, edge_index=ends, y=y))
    path = tmp_path_factory.mktemp("nonlinear") / "report.html"
    return report(exposure, y, path, edge_index=ends), exposure, y


@pytest.fixture(scope="session")
def nonlinear(nonlinear_world):
    """The page of that model."""
    return nonlinear_world[0]
