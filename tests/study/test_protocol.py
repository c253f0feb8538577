"""The protocol: the paper's numbers, their digest, and changing them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv

from gnn_repair.backbones import BACKBONES
from gnn_repair.errors import InputError
from gnn_repair.exposure import expose
from gnn_repair.methods import METHODS
from gnn_repair.repair.folds import build_repair
from gnn_repair.results.protocol import BackboneProtocol, differences, digest_of
from gnn_repair.study import PAPER, Protocol, override, read_protocol
from gnn_repair.study.case import build_backbone


def test_the_digest_depends_on_every_value_and_on_nothing_else():
    assert Protocol().digest == PAPER.digest
    assert len(PAPER.digest) == 12
    seen = {PAPER.digest}
    for change in (
        "backbones.hidden=127",
        "backbones.short.patience=7",
        "backbones.long.patience=none",
        "repairs.refit_head.epoch_zero=true",
        "batches.sizes.cora=4",
        "batches.backbones=sgc",
        "oracle.reachable_above=1e-6",
    ):
        seen.add(override(PAPER, [change]).digest)
    assert len(seen) == 8
    shuffled = dict(reversed(PAPER.settings().items()))
    assert digest_of(differences(shuffled)) == PAPER.digest


def test_assignments_change_what_they_name():
    changed = override(PAPER, ["backbones.short.epochs=5", "backbones.dropout=0"])
    assert changed.backbones.short == dataclasses.replace(PAPER.backbones.short, epochs=5)
    assert changed.backbones.dropout == 0.0
    assert isinstance(changed.backbones.dropout, float)
    assert changed.repairs == PAPER.repairs


def test_a_toml_file_changes_what_it_names(tmp_path):
    path = tmp_path / "protocol.toml"
    path.write_text('[backbones]\nhidden = 64\n[backbones.long]\npatience = "none"\n')
    same = override(PAPER, ["backbones.hidden=64", "backbones.long.patience=none"])
    assert read_protocol(path) == same


BAD = """nonsense backbones.hidden=wide backbones.hidden=1.5 backbones.hidden=-1
backbones.hidden=0 backbones.hidden=65537 backbones.heads=0 repairs.hidden=0 repairs.dropout=2
repairs.dropout=1 repairs.dropout=-1 backbones.dropout=nan backbones.dropout=true
repairs.reweighting.learning_rate=inf repairs.reweighting.learning_rate=0
repairs.reweighting.weight_decay=-inf backbones.short.epochs=0 backbones.short.patience=0
backbones.short.clip=0 backbones.short.decoupled=1 backbones.seed=-1 backbones.self_loops=two
oracle.reachable_above=nan batches.size=0 batches.sizes.cora=0 batches.sizes.cora=many
batches.sizes=3 batches.backbones=3 data.draw=dice version=0 repairs.smoothing_layers=0
backbones.short.epochs=9999999999"""


@pytest.mark.parametrize("assignment", BAD.split())
def test_bad_assignments_are_named(assignment):
    name, _, value = assignment.partition("=")
    with pytest.raises(InputError, match=f"{name}.* is ") as caught:
        override(PAPER, [assignment])
    assert value.lower() in str(caught.value).lower().replace(".0;", ";")


def leaves(tree, where=""):
    for name, value in tree.items():
        if isinstance(value, dict) and name != "sizes":
            yield from leaves(value, f"{where}{name}.")
        else:
            yield f"{where}{name}"


ENDS = ("0", "1", "2147483647", "5e-324", "0.9999999", "1.7e308", "none", "true", "false")


@pytest.mark.parametrize("end", ENDS)
def test_what_a_study_accepts_its_methods_accept(end):
    """Each setting at the ends of its range: everything that reads it can be built."""
    ring = torch.stack([torch.arange(4), torch.arange(1, 5) % 4])
    exposure, built = expose(GCNConv(3, 2), Data(x=torch.ones(4, 3), edge_index=ring)), 0
    for leaf in leaves(PAPER.settings()):
        try:
            protocol = override(PAPER, [f"{leaf}={end}"])
        except InputError:
            continue
        for method in METHODS.values():
            if leaf in method.settings or leaf.rpartition(".")[0] in method.settings:
                build_repair(method, protocol.repairs, exposure)
                built += 1
        if leaf.startswith("backbones.") and not leaf.endswith(("hidden", "heads")):
            for backbone in BACKBONES.values():
                build_backbone(backbone, protocol.backbones).network(3, 2)
    assert built


def test_a_protocol_built_by_hand_is_checked_too():
    for build, name in (
        (lambda: BackboneProtocol(hidden=0), "hidden"),
        (lambda: BackboneProtocol(short=None), "budget"),
        (lambda: Protocol(backbones=None), "backbones"),
        (lambda: dataclasses.replace(PAPER, version="2"), "version"),
        (lambda: override(None, []), "Protocol"),
        (lambda: override(PAPER, "backbones.hidden=64"), "backbones.hidden"),
    ):
        with pytest.raises(InputError, match=name):
            build()


def test_numbers_of_numpy_are_plain_numbers():
    own = BackboneProtocol(hidden=np.int64(64), dropout=np.float32(0.25))
    typed = override(PAPER, ["backbones.hidden=64", "backbones.dropout=0.25"])
    assert Protocol(backbones=own).digest == typed.digest
