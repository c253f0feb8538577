"""DBLP, IMDB and OGB-MAG through PyG's own loaders, from small files in their formats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse
from torch import Tensor, nn
from torch_geometric import nn as pyg
from torch_geometric import transforms
from torch_geometric.datasets import DBLP, IMDB, OGB_MAG

from gnn_repair import expose, solve


def write_heterogeneous(root: Path, sizes: list[int], dense: tuple[int, ...], bare: int) -> None:
    """The files of MAGNN's preprocessing: features by type, one adjacency, labels of the first."""
    rng, raw = np.random.default_rng(0), root / "raw"
    raw.mkdir(parents=True)
    for kind, size in enumerate(sizes[: len(sizes) - bare]):
        x = rng.random((size, 5 + kind)).astype(np.float32)
        if kind in dense:
            np.save(raw / f"features_{kind}.npy", x)
        else:
            sparse.save_npz(raw / f"features_{kind}.npz", sparse.csr_matrix(x))
    kinds = np.repeat(np.arange(len(sizes)), sizes)
    np.save(raw / "node_types.npy", kinds)
    np.save(raw / "labels.npy", rng.integers(3, size=sizes[0]))
    parts = np.array_split(rng.permutation(sizes[0]), 3)
    np.savez(raw / "train_val_test_idx.npz", train_idx=parts[0], val_idx=parts[1],
             test_idx=parts[2])  # fmt: skip
    links = np.triu(rng.random((len(kinds), len(kinds))) < 0.15, 1)
    links[kinds[:, None] == kinds[None]] = False
    sparse.save_npz(raw / "adjM.npz", sparse.csr_matrix((links | links.T).astype(np.float64)))


def write_mag(root: Path) -> None:
    """The files of ogbn-mag."""
    rng, raw = np.random.default_rng(0), root / "mag" / "raw"
    sizes = {"paper": 25, "author": 14, "institution": 5, "field_of_study": 8}

    def write(values: Any, *place: str, header: bool = False) -> None:
        path = raw.joinpath(*place)
        path.parent.mkdir(parents=True, exist_ok=True)
        pd.DataFrame(values).to_csv(path, index=False, header=header, compression="gzip")

    write(rng.standard_normal((25, 4)), "node-feat", "paper", "node-feat.csv.gz")
    write(rng.integers(2010, 2020, 25), "node-feat", "paper", "node_year.csv.gz")
    write(rng.integers(3, size=25), "node-label", "paper", "node-label.csv.gz")
    write({k: [v] for k, v in sizes.items()}, "num-node-dict.csv.gz", header=True)
    for source, name, target in (
        ("author", "affiliated_with", "institution"), ("author", "writes", "paper"),
        ("paper", "cites", "paper"), ("paper", "has_topic", "field_of_study"),
    ):  # fmt: skip
        edges = np.stack([rng.integers(sizes[k], size=40) for k in (source, target)], axis=1)
        folder = f"{source}___{name}___{target}"
        write(np.unique(edges, axis=0), "relations", folder, "edge.csv.gz")
    for part, numbers in zip(("train", "valid", "test"), np.array_split(np.arange(25), 3),
                             strict=True):  # fmt: skip
        write(numbers, "split", "time", "paper", f"{part}.csv.gz")


class Transformer(nn.Module):
    def __init__(self, data: Any) -> None:
        super().__init__()
        self.lins = nn.ModuleDict({kind: pyg.Linear(-1, 8) for kind in data.node_types})
        self.conv, self.lin = pyg.HGTConv(8, 8, data.metadata(), 2), nn.Linear(8, 3)

    def forward(self, x_dict: dict[str, Tensor], edge_index_dict: dict[Any, Tensor]) -> Tensor:
        x_dict = {kind: self.lins[kind](x).relu_() for kind, x in x_dict.items()}
        return self.lin(self.conv(x_dict, edge_index_dict)["author"])


class Paths(nn.Module):
    def __init__(self, data: Any) -> None:
        super().__init__()
        self.conv, self.lin = pyg.HANConv(-1, 8, data.metadata(), heads=2), nn.Linear(8, 3)

    def forward(self, x_dict: dict[str, Tensor], edge_index_dict: dict[Any, Tensor]) -> Tensor:
        return self.lin(self.conv(x_dict, edge_index_dict)["movie"])


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = pyg.SAGEConv((-1, -1), 8), pyg.SAGEConv((-1, -1), 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv2(self.conv1(x, edge_index).relu(), edge_index)


class Embedded(nn.Module):
    def __init__(self, data: Any) -> None:
        super().__init__()
        bare = [kind for kind in data.node_types if "x" not in data[kind]]
        self.embeddings = nn.ModuleDict(
            {kind: nn.Embedding(data[kind].num_nodes, 4) for kind in bare}
        )
        self.gnn = pyg.to_hetero(Plain(), data.metadata())

    def forward(self, x_dict: dict[str, Tensor], edge_index_dict: dict[Any, Tensor]) -> Any:
        learnt = {kind: table.weight for kind, table in self.embeddings.items()}
        return self.gnn({**x_dict, **learnt}, edge_index_dict)


def ready(model: nn.Module, data: Any) -> nn.Module:
    with torch.no_grad():
        model(data.x_dict, data.edge_index_dict)
    return model.eval()


def test_dblp_with_hgt(tmp_path: Path) -> None:
    write_heterogeneous(tmp_path, [20, 24, 9, 4], dense=(2,), bare=1)
    dataset = DBLP(str(tmp_path), transform=transforms.Constant(node_types="conference"))
    model = ready(Transformer(dataset[0]), dataset[0])
    exposure = expose(model, dataset)
    assert exposure.names.recipient == "author" and exposure.head is not None
    names = {group.name for group in exposure.groups}
    assert {f"paper to author head {head}" for head in (0, 1)} <= names
    assert exposure.residual is not None and exposure.residual <= 1e-5
    solution = solve(exposure, dataset[0]["author"].y, torch.arange(5))
    assert solution.check(exposure).ok


def test_imdb_with_han_over_paths(tmp_path: Path) -> None:
    write_heterogeneous(tmp_path, [22, 8, 15], dense=(), bare=0)
    paths = [
        [("movie", "actor"), ("actor", "movie")],
        [("movie", "director"), ("director", "movie")],
    ]
    change = transforms.AddMetaPaths(
        paths, drop_orig_edge_types=True, drop_unconnected_node_types=True
    )
    data = IMDB(str(tmp_path), transform=change)[0]
    exposure = expose(ready(Paths(data), data), data)
    assert [group.name for group in exposure.groups] == [
        f"movie metapath_{path} movie head {head}" for path in (0, 1) for head in (0, 1)
    ]
    assert exposure.names.senders == (("movie", 22),)
    assert exposure.residual is not None and exposure.residual <= 1e-5


@pytest.mark.filterwarnings("ignore:.*:UserWarning")
def test_mag_with_embeddings(tmp_path: Path) -> None:
    write_mag(tmp_path)
    dataset = OGB_MAG(str(tmp_path), transform=transforms.ToUndirected(merge=False))
    model = ready(Embedded(dataset[0]), dataset[0])
    exposure = expose(model, dataset)
    assert exposure.names.recipient == "paper"
    assert {group.name for group in exposure.groups} == {
        "author writes paper", "paper cites paper", "paper rev_cites paper",
        "field_of_study rev_has_topic paper",
    }  # fmt: skip
    assert set(exposure.to_frame()["source_type"]) == {"author", "paper", "field_of_study"}
    assert exposure.residual is not None and exposure.residual <= 1e-5
