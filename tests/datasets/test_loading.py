"""Loading and validating datasets."""

from __future__ import annotations

import io
import pickle
import urllib.request
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data

from gnn_repair.catalog import DATASETS, DatasetSpec, Statistics
from gnn_repair.checks import check_data
from gnn_repair.datasets import load_dataset, loading, stratified_splits
from gnn_repair.datasets.loading import CacheWarning, compare, entries, load
from gnn_repair.errors import DatasetError, SplitError

# Files in the heterophilous format, from disk to graph: generated, altered, missing, fetched.

Arrays = dict[str, np.ndarray]
Place = Callable[[str, Arrays], tuple[DatasetSpec, Path]]
NPZ = ["roman-empire", "amazon-ratings", "chameleon-filtered", "squirrel-filtered"]


def files_below(root: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", NPZ)
def test_a_generated_file_loads_as_it_was_written(name: str, arrays: Arrays, place: Place) -> None:
    arrays["node_labels"] %= DATASETS[name].statistics.classes
    spec, root = place(name, arrays)
    data = load(spec, root)
    torch.testing.assert_close(data.x, torch.from_numpy(arrays["node_features"]))
    torch.testing.assert_close(data.y, torch.from_numpy(arrays["node_labels"]))
    for field in ("train", "val", "test"):
        written = torch.from_numpy(arrays[f"{field}_masks"])[:10].t()
        torch.testing.assert_close(data[f"{field}_mask"], written)
    pairs = {(a, b) for a, b in arrays["edges"].tolist()}
    expected = Counter(pairs | {(b, a) for a, b in pairs}) + Counter((v, v) for v in range(72))
    assert Counter(map(tuple, data.edge_index.t().tolist())) == expected
    assert (data.name, data.classes) == (name, DATASETS[name].statistics.classes)


def test_nothing_is_written_beside_raw_files(arrays: Arrays, place: Place) -> None:
    spec, root = place("roman-empire", arrays)
    before = files_below(root)
    load(spec, root)
    assert files_below(root) == before
    assert [path.name for path in root.rglob("processed")] == []


def test_unlabelled_nodes_are_in_no_mask(arrays: Arrays, place: Place) -> None:
    arrays["node_labels"][[3, 40]] = -1
    spec, root = place("roman-empire", arrays)
    data = load(spec, root)
    masks = data.train_mask | data.val_mask | data.test_mask
    torch.testing.assert_close(masks.all(dim=1), data.y >= 0)
    torch.testing.assert_close(masks.any(dim=1), data.y >= 0)


@pytest.mark.parametrize(
    ("field", "where", "value", "error", "message"),
    [
        ("node_features", (7, 2), np.nan, DatasetError, "node 7, feature 2"),
        ("edges", (0, 1), 72, DatasetError, "roman-empire cannot be"),
        ("train_masks", slice(None), True, SplitError, "overlap"),
    ],
)
def test_bad_content(
    arrays: Arrays,
    place: Place,
    field: str,
    where: Any,
    value: float,
    error: type[Exception],
    message: str,
) -> None:
    arrays[field][where] = value
    spec, root = place("roman-empire", arrays)
    with pytest.raises(error, match=message):
        load(spec, root)


def test_a_file_of_another_format(arrays: Arrays, place: Place) -> None:
    del arrays["node_labels"]
    spec, root = place("squirrel-filtered", arrays)
    with pytest.raises(DatasetError, match=r"squirrel-filtered cannot be read .*node_labels"):
        load(spec, root)


def test_pickled_arrays_are_not_loaded(arrays: Arrays, place: Place) -> None:
    arrays["node_labels"] = np.array([{}] * 72, dtype=object)
    spec, root = place("chameleon-filtered", arrays)
    with pytest.raises(DatasetError, match="allow_pickle=False"):
        load(spec, root)


@pytest.mark.parametrize("damage", [lambda raw: raw[:-9], lambda raw: raw[:-1] + b"?"])
def test_a_truncated_or_altered_file_is_named_and_not_parsed(
    arrays: Arrays, place: Place, monkeypatch: pytest.MonkeyPatch, damage: Callable[[bytes], bytes]
) -> None:
    spec, root = place("amazon-ratings", arrays)
    path = root / spec.files[0].path
    path.write_bytes(damage(path.read_bytes()))
    parsed: list[Path] = []
    monkeypatch.setattr(
        "gnn_repair.datasets.loading.read_raw", lambda source, folder: parsed.append(folder)
    )
    with pytest.raises(DatasetError, match=f"{path} is truncated.*sha256 {spec.files[0].sha256}"):
        load(spec, root)
    assert parsed == []


class Touch:
    """Unpickling this creates a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (open, (str(self.path), "w"))


def test_a_planted_pickle_is_never_run(tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    for file in DATASETS["cora"].files:
        path = tmp_path / "data" / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(pickle.dumps(Touch(trap)))
    with pytest.raises(DatasetError, match="truncated or altered"):
        load_dataset("cora", tmp_path / "data")
    assert not trap.exists()


@pytest.mark.usefixtures("offline")
def test_missing_files_are_named_with_size_and_place(tmp_path: Path) -> None:
    root = tmp_path / "empty"
    with pytest.raises(DatasetError) as caught:
        load_dataset("cora", root)
    message = str(caught.value)
    assert message.startswith("cora is not here and cannot be downloaded (no connection")
    for file in DATASETS["cora"].files:
        assert f"{Path(file.path).name} ({file.size:,} bytes)" in message
    assert str(root / "planetoid" / "Cora" / "raw") in message
    assert "GNN_REPAIR_DATA" in message
    assert "\n" not in message
    assert not root.exists()


def test_an_unwritable_root(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(
        DatasetError, match=r"is a file; choose.*roman_empire.npz \(20,401,489 bytes\)"
    ):
        load_dataset("roman-empire", tmp_path / "file" / "root")
    with pytest.raises(DatasetError, match="is a file; name a folder"):
        load_dataset("roman-empire", tmp_path / "file")
    with pytest.raises(DatasetError, match="data root is empty"):
        load_dataset("roman-empire", " ")


def test_the_root_may_come_from_the_environment(
    arrays: Arrays, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, root = place("roman-empire", arrays)
    monkeypatch.setenv("GNN_REPAIR_DATA", str(root))
    assert load(spec).num_nodes == 72


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("corra", "cora"), ("Roman_Empire", "roman-empire"), ("squirel", "squirrel")],
)
def test_an_unknown_name_gets_the_nearest(wrong: str, right: str) -> None:
    with pytest.raises(DatasetError, match=f"no dataset '{wrong}'; did you mean '{right}'"):
        load_dataset(wrong)


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], list[str]]:
    """Answers every request with the given content; gives the list of addresses asked for."""

    def start(content: bytes) -> list[str]:
        asked: list[str] = []

        def answer(request: Any, **options: Any) -> io.BytesIO:
            asked.append(getattr(request, "full_url", request))
            return io.BytesIO(content)

        monkeypatch.setattr(urllib.request, "urlopen", answer)
        return asked

    return start


def test_online_missing_files_are_fetched_by_pyg(
    arrays: Arrays, place: Place, serve: Callable[[bytes], list[str]]
) -> None:
    spec, root = place("roman-empire", arrays)
    path = root / spec.files[0].path
    content = path.read_bytes()
    path.unlink()
    asked = serve(content)
    assert load(spec, root).num_nodes == 72
    assert asked[-1].endswith("/roman_empire.npz")
    assert files_below(root) == {str(path): content}


def test_a_wrong_download_leaves_nothing_behind(
    arrays: Arrays, place: Place, serve: Callable[[bytes], list[str]]
) -> None:
    spec, root = place("roman-empire", arrays)
    (root / spec.files[0].path).unlink()
    serve(b"not the file")
    with pytest.raises(DatasetError, match="what the server sent does not match"):
        load(spec, root)
    assert files_below(root) == {}


def test_the_second_load_comes_from_the_cache(
    arrays: Arrays, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, root = place("roman-empire", arrays)
    first = load(spec, root)
    monkeypatch.setattr(
        "gnn_repair.datasets.loading.read_raw", lambda source, folder: pytest.fail("parsed again")
    )
    second = load(spec, root)
    assert second.keys() == first.keys()
    for field in ("x", "edge_index", "y", "train_mask", "val_mask", "test_mask"):
        torch.testing.assert_close(second[field], first[field], rtol=0, atol=0)


@pytest.mark.parametrize(
    "damage", [lambda raw: raw[:500], lambda raw: raw[:-1] + bytes([raw[-1] ^ 1])]
)
def test_a_damaged_cache_is_named_and_rebuilt(
    arrays: Arrays,
    place: Place,
    private_cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    damage: Callable[[bytes], bytes],
) -> None:
    spec, root = place("roman-empire", arrays)
    first = load(spec, root)
    (entry,) = private_cache.rglob("*.safetensors")
    entry.write_bytes(damage(entry.read_bytes()))
    with pytest.warns(CacheWarning, match=f"{entry} is damaged.*built again"):
        again = load(spec, root)
    torch.testing.assert_close(again.x, first.x)
    torch.testing.assert_close(again.val_mask, first.val_mask)
    monkeypatch.setattr(
        "gnn_repair.datasets.loading.read_raw", lambda source, folder: pytest.fail("parsed again")
    )
    torch.testing.assert_close(load(spec, root).x, first.x)


def test_a_cached_graph_of_another_dataset_is_not_taken(
    arrays: Arrays, place: Place, private_cache: Path
) -> None:
    arrays["node_labels"] %= 5
    loaded, entries = {}, {}
    for name in ("roman-empire", "amazon-ratings"):
        loaded[name] = place(name, arrays)
        load(*loaded[name])
        (entries[name],) = private_cache.rglob(f"{name}-*.safetensors")
    entries["amazon-ratings"].write_bytes(entries["roman-empire"].read_bytes())
    with pytest.warns(CacheWarning, match="does not hold amazon-ratings"):
        assert load(*loaded["amazon-ratings"]).name == "amazon-ratings"


def test_a_cache_that_cannot_be_written_is_done_without(
    arrays: Arrays, place: Place, private_cache: Path
) -> None:
    private_cache.write_text("a file where the folder should be")
    spec, root = place("roman-empire", arrays)
    assert load(spec, root).num_nodes == 72


def test_a_changed_file_is_not_answered_from_the_cache(arrays: Arrays, place: Place) -> None:
    spec, root = place("squirrel-filtered", {**arrays, "node_labels": arrays["node_labels"] % 5})
    load(spec, root)
    arrays["node_features"][:] = 2.0
    arrays["node_labels"] %= 5
    np.savez(root / spec.files[0].path, **arrays)
    torch.testing.assert_close(load(spec, root).x, torch.full((72, 5), 2.0))


# Each kind of bad input is refused by name; entries of a small graph by hand.


def small_graph() -> Data:
    """Six nodes in a ring, the last unlabelled, two splits."""
    part = torch.tensor([[0, 1], [1, 2], [2, 0], [0, 1], [1, 2], [-1, -1]])
    ring = torch.arange(6)
    return Data(
        x=torch.arange(12.0).view(6, 2),
        edge_index=torch.stack([ring, ring.roll(1)]),
        y=torch.tensor([0, 1, 2, 0, 1, -1]),
        train_mask=part == 0,
        val_mask=part == 1,
        test_mask=part == 2,
    )


def test_a_sound_graph_passes() -> None:
    check_data(small_graph())


def test_masks_of_a_single_split_pass() -> None:
    data = small_graph()
    for name in ("train_mask", "val_mask", "test_mask"):
        data[name] = data[name][:, 0]
    check_data(data)


def with_value(tensor: Tensor, where: tuple[int, ...], value: float) -> Tensor:
    changed = tensor.clone()
    changed[where] = value
    return changed


@pytest.mark.parametrize(
    ("field", "where", "value", "error", "message"),
    [
        ("x", (3, 1), float("nan"), DatasetError, r"\(nan\) at node 3, feature 1"),
        ("y", (4,), -2, DatasetError, "y is -2 at node 4; classes are 0 to 2"),
        ("edge_index", (1, 0), 6, DatasetError, "names node 6"),
        ("val_mask", (0, 0), True, SplitError, "train_mask and val_mask overlap: node 0"),
        ("test_mask", (2, 1), True, SplitError, "train_mask and test_mask overlap: node 2"),
        ("train_mask", (2, 1), False, SplitError, "train_mask of split 1 is empty"),
        ("train_mask", (5, 0), True, SplitError, "node 5, which is unlabelled"),
    ],
)
def test_one_wrong_value(
    field: str, where: tuple[int, ...], value: float, error: type[Exception], message: str
) -> None:
    data = small_graph()
    data[field] = with_value(data[field], where, value)
    with pytest.raises(error, match=message):
        check_data(data)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("x", torch.arange(12).view(6, 2), "torch.int64"),
        ("x", torch.zeros(6), r"shape \[6\]"),
        ("y", torch.zeros(6), "torch.float32"),
        ("y", torch.zeros(5, dtype=torch.long), r"shape \[5\] for 6 nodes"),
        ("y", torch.full((6,), -1), "No node is labelled"),
        ("edge_index", torch.zeros(3, 4, dtype=torch.long), r"shape \[3, 4\]"),
        ("test_mask", torch.zeros(6, 2), "torch.float32"),
        ("test_mask", torch.ones(6, 3, dtype=torch.bool), r"shape \[6, 3\]"),
        ("val_mask", None, "no tensor val_mask"),
    ],
)
def test_a_wrong_tensor(field: str, value: Tensor | None, message: str) -> None:
    data = small_graph()
    data[field] = value
    with pytest.raises((DatasetError, SplitError), match=message):
        check_data(data)


def test_stated_classes_bound_the_labels() -> None:
    data = small_graph()
    data.classes = 2
    with pytest.raises(DatasetError, match="y is 2 at node 2; classes are 0 to 1"):
        check_data(data)


def test_the_shares_of_every_split_are_of_the_labelled_nodes() -> None:
    y = torch.where(torch.arange(40) < 24, torch.arange(40) % 2, -1)
    train, val, test = stratified_splits(y, (50, 25, 25), range(10))
    masks = {"train_mask": train, "val_mask": val, "test_mask": test}
    data = Data(x=torch.ones(40, 1), edge_index=torch.empty(2, 0), y=y, **masks)
    spec = DatasetSpec("own", None, Statistics(40, 0, 1, 2, (50, 25, 25)))
    assert compare(spec, data) == []
    moved = int(train[:, 7].nonzero()[0])
    train[moved, 7], val[moved, 7] = False, True
    shares = ["train_mask 45.8 % (published 50 %)", "val_mask 29.2 % (published 25 %)"]
    assert compare(spec, data) == shares


def test_entries_are_symmetric_coalesced_and_looped_on_top() -> None:
    # 0→1 one way, 1→2 both ways and twice, a self-loop at 2, node 3 isolated.
    edges = torch.tensor([[0, 1, 2, 1, 2], [1, 2, 1, 2, 2]])
    found = Counter(map(tuple, entries(edges, num_nodes=4).t().tolist()))
    both_ways = [(0, 1), (1, 0), (1, 2), (2, 1)]
    loops = [(0, 0), (1, 1), (2, 2), (2, 2), (3, 3)]
    assert found == Counter(both_ways + loops)


def test_a_graph_without_edges_keeps_its_loops() -> None:
    none = torch.empty(2, 0, dtype=torch.long)
    torch.testing.assert_close(entries(none, num_nodes=3), torch.tensor([[0, 1, 2], [0, 1, 2]]))


def test_an_edge_to_nowhere_is_refused() -> None:
    with pytest.raises(DatasetError, match="names node 4, but the nodes are 0 to 3"):
        entries(torch.tensor([[0], [4]]), num_nodes=4)


def test_every_draw_has_a_cached_graph_of_its_own(
    arrays: Arrays, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, root = place("roman-empire", arrays)
    parse, parsed = loading._parse, []

    def drawn(spec: DatasetSpec, folder: Path, draw: Any) -> Any:
        parsed.append(draw)
        data = parse(spec, folder, draw)
        if draw == "numpy":
            data.train_mask, data.test_mask = data.test_mask, data.train_mask
        return data

    monkeypatch.setattr(loading, "_parse", drawn)
    torch_first, numpy, again = (load(spec, root, draw) for draw in ("torch", "numpy", "torch"))
    assert parsed == ["torch", "numpy"]
    torch.testing.assert_close(numpy.test_mask, torch_first.train_mask)
    torch.testing.assert_close(again.train_mask, torch_first.train_mask)
    assert not torch.equal(numpy.train_mask, torch_first.train_mask)
