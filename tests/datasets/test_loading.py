"""Loading and validating datasets."""

from __future__ import annotations

import io
import urllib.error
import urllib.request
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load as load_bytes
from safetensors.torch import save
from torch_geometric.data import Data

from gnn_repair.catalog import DATASETS, DatasetSpec, Statistics
from gnn_repair.checks import MASKS, check_data, num_classes
from gnn_repair.datasets import load_dataset, loading, stratified_splits
from gnn_repair.datasets.loading import CacheWarning, compare, entries, load
from gnn_repair.errors import DatasetError, SplitError

# Files in the heterophilous format, from disk to graph: generated, altered, missing, fetched.

NPZ = ["roman-empire", "amazon-ratings", "chameleon-filtered", "squirrel-filtered"]


def files_below(root):
    return {str(path): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def same(one, other):
    assert set(one.keys()) == set(other.keys())
    for field in ("x", "edge_index", "y", *MASKS):
        torch.testing.assert_close(one[field], other[field], rtol=0, atol=0)


@pytest.fixture
def parsed(monkeypatch):
    """How often raw files are parsed."""
    read, calls = loading.read_raw, []
    monkeypatch.setattr(loading, "read_raw", lambda *given: calls.append(given) or read(*given))
    return calls


@pytest.mark.parametrize("name", NPZ)
def test_a_generated_file_loads_as_it_was_written_and_nothing_is_written_beside_it(
    name, arrays, place
):
    arrays["node_labels"] %= DATASETS[name].statistics.classes
    arrays["node_labels"][[3, 40]] = -1
    spec, root = place(name, arrays)
    before = files_below(root)
    data = load(spec, root)
    torch.testing.assert_close(data.x, torch.from_numpy(arrays["node_features"]))
    torch.testing.assert_close(data.y, torch.from_numpy(arrays["node_labels"]))
    for field in ("train", "val", "test"):
        written = torch.from_numpy(arrays[f"{field}_masks"])[:10].t().clone()
        written[[3, 40]] = False  # unlabelled nodes are in no mask
        torch.testing.assert_close(data[f"{field}_mask"], written)
    pairs = {(a, b) for a, b in arrays["edges"].tolist()}
    expected = Counter(pairs | {(b, a) for a, b in pairs}) + Counter((v, v) for v in range(72))
    assert Counter(map(tuple, data.edge_index.t().tolist())) == expected
    assert (data.name, data.classes) == (name, DATASETS[name].statistics.classes)
    assert files_below(root) == before
    assert [path.name for path in root.rglob("processed")] == []


@pytest.mark.parametrize(
    ("name", "change", "error", "words"),
    [
        ("roman-empire", {"node_features": ((7, 2), np.nan)}, DatasetError, "node 7, feature 2"),
        ("roman-empire", {"edges": ((0, 1), 72)}, DatasetError, "roman-empire"),
        ("roman-empire", {"train_masks": (slice(None), True)}, SplitError, "overlap"),
        (
            "squirrel-filtered",
            {"node_labels": None},
            DatasetError,
            "squirrel-filtered.*node_labels",
        ),
        ("chameleon-filtered", {"node_labels": [{}]}, DatasetError, "allow_pickle=False"),
    ],
)
def test_bad_content_is_named(name, change, error, words, arrays, place):
    """A wrong value, a field that is not there, an array that only a pickle holds."""
    ((field, wrong),) = change.items()
    if wrong is None:
        del arrays[field]
    elif isinstance(wrong, list):
        arrays[field] = np.array(wrong * 72, dtype=object)
    else:
        arrays[field][wrong[0]] = wrong[1]
    spec, root = place(name, arrays)
    with pytest.raises(error, match=words):
        load(spec, root)


@pytest.mark.parametrize("damage", [lambda raw: raw[:-9], lambda raw: raw[:-1] + b"?"])
def test_a_file_that_is_not_the_original_is_named_and_not_parsed(damage, arrays, place, parsed):
    spec, root = place("amazon-ratings", arrays)
    path = root / spec.files[0].path
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DatasetError, match=f"{path}.*sha256 {spec.files[0].sha256}"):
        load(spec, root)
    assert parsed == []


def test_missing_files_are_named_with_size_and_place(tmp_path, monkeypatch):
    root = tmp_path / "empty"

    def refuse(*arguments, **options):
        raise urllib.error.URLError("Name or service not known")

    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    with pytest.raises(DatasetError) as caught:
        load_dataset("cora", root)
    message = str(caught.value)
    for file in DATASETS["cora"].files:
        assert f"{Path(file.path).name} ({file.size:,} bytes)" in message
    for word in ("cora", str(root / "planetoid" / "Cora" / "raw"), "GNN_REPAIR_DATA"):
        assert word in message
    assert "\n" not in message
    assert not root.exists()


def test_the_root_may_come_from_the_environment_unless_given(arrays, place, monkeypatch, tmp_path):
    spec, root = place("roman-empire", arrays)
    monkeypatch.setenv("GNN_REPAIR_DATA", str(root))
    assert load(spec).num_nodes == 72
    (tmp_path / "file").touch()
    monkeypatch.setenv("GNN_REPAIR_DATA", str(tmp_path / "file"))
    assert load(spec, root).num_nodes == 72


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("corra", "cora"), ("Roman_Empire", "roman-empire"), ("squirel", "squirrel")],
)
def test_an_unknown_name_gets_the_nearest(wrong, right):
    with pytest.raises(DatasetError, match=f"'{wrong}'.*'{right}'"):
        load_dataset(wrong)


@pytest.mark.parametrize("sent", ["original", b"not the file"])
def test_online_missing_files_are_fetched_by_pyg_and_a_wrong_one_leaves_nothing(
    sent, arrays, place, monkeypatch
):
    spec, root = place("roman-empire", arrays)
    path = root / spec.files[0].path
    content, asked = path.read_bytes(), []
    path.unlink()

    def answer(request, **options):
        asked.append(getattr(request, "full_url", request))
        return io.BytesIO(content if sent == "original" else sent)

    monkeypatch.setattr(urllib.request, "urlopen", answer)
    if sent == "original":
        assert load(spec, root).num_nodes == 72
        assert files_below(root) == {str(path): content}
    else:
        with pytest.raises(DatasetError, match="does not match"):
            load(spec, root)
        assert files_below(root) == {}
    assert asked[-1].endswith("/roman_empire.npz")


# What is cached: the same graph without parsing, never another one's, never a damaged one.


def test_a_graph_is_parsed_once_until_its_file_or_its_draw_changes(arrays, place, parsed):
    arrays["node_labels"] %= 5
    spec, root = place("squirrel-filtered", arrays)
    first = load(spec, root)
    same(load(spec, root), first)
    assert len(parsed) == 1
    assert load(spec, root, "numpy").classes == 5
    assert len(parsed) == 2
    arrays["node_features"][:] = 2.0
    np.savez(root / spec.files[0].path, **arrays)
    torch.testing.assert_close(load(spec, root).x, torch.full((72, 5), 2.0))


@pytest.mark.parametrize("damage", ["cut", "altered", "unsealed", "another dataset's"])
def test_a_damaged_cache_is_named_and_rebuilt(damage, arrays, place, private_cache, parsed):
    arrays["node_labels"] %= 5
    spec, root = place("roman-empire", arrays)
    first = load(spec, root)
    (entry,) = private_cache.rglob("*.safetensors")
    raw = entry.read_bytes()
    content = {"cut": raw[:500], "altered": raw[:-1] + bytes([raw[-1] ^ 1])}
    if damage == "unsealed":  # as earlier versions wrote files, without a checksum
        metadata = {"kind": "preprocessed graph", "header": '{"name": "roman-empire"}'}
        content[damage] = save(load_bytes(raw), metadata)
    if damage not in content:
        load(*place("amazon-ratings", arrays))
        (other,) = private_cache.rglob("amazon-ratings-*.safetensors")
        content[damage] = other.read_bytes()
    entry.write_bytes(content[damage])
    parsed.clear()
    with pytest.warns(CacheWarning, match=f"roman-empire.*{entry}"):
        again = load(spec, root)
    same(again, first)
    same(load(spec, root), first)
    assert len(parsed) == 1 and again.name == "roman-empire"


def test_a_cache_that_cannot_be_written_is_done_without(arrays, place, private_cache):
    private_cache.write_text("a file where the folder should be")
    spec, root = place("roman-empire", arrays)
    assert load(spec, root).num_nodes == 72


# Each kind of bad input is refused by name; entries of a small graph by hand.


def small_graph(**changes):
    """Six nodes in a ring, the last unlabelled, two splits."""
    part = torch.tensor([[0, 1], [1, 2], [2, 0], [0, 1], [1, 2], [-1, -1]])
    ring = torch.arange(6)
    data = Data(
        x=torch.arange(12.0).view(6, 2),
        edge_index=torch.stack([ring, ring.roll(1)]),
        y=torch.tensor([0, 1, 2, 0, 1, -1]),
        train_mask=part == 0,
        val_mask=part == 1,
        test_mask=part == 2,
    )
    for name, value in changes.items():
        data[name] = value
    return data


def test_sound_graphs_pass():
    check_data(small_graph())
    assert (num_classes(small_graph()), num_classes(small_graph(classes=5))) == (3, 5)
    check_data(small_graph(**{name: small_graph()[name][:, 0] for name in MASKS}))


@pytest.mark.parametrize(
    ("field", "where", "value", "error", "message"),
    [
        ("x", (3, 1), float("nan"), DatasetError, r"\(nan\) at node 3, feature 1"),
        ("y", (4,), -2, DatasetError, "y is -2 at node 4; classes are 0 to 2"),
        ("edge_index", (1, 0), 6, DatasetError, "names node 6"),
        ("edge_index", (1, 0), -1, DatasetError, "names node -1"),
        ("val_mask", (0, 0), True, SplitError, "train_mask and val_mask overlap: node 0.*split 0"),
        ("test_mask", (2, 1), True, SplitError, "train_mask and test_mask.*node 2.*split 1"),
        ("test_mask", (1, 0), True, SplitError, "val_mask and test_mask.*node 1.*split 0"),
        ("train_mask", (2, 1), False, SplitError, "train_mask of split 1"),
        ("train_mask", (5, 0), True, SplitError, "split 0.*node 5"),
        ("val_mask", (5, 1), True, SplitError, "split 1.*node 5"),
        ("x", None, torch.arange(12).view(6, 2), DatasetError, "torch.int64"),
        ("x", None, torch.zeros(6), DatasetError, r"shape \[6\]"),
        ("x", None, torch.eye(6).to_sparse(), DatasetError, r"x is sparse.*x\.to_dense\(\)"),
        ("y", None, torch.zeros(6), DatasetError, "torch.float32"),
        ("y", None, torch.zeros(5).long(), DatasetError, r"shape \[5\] for 6 nodes"),
        ("y", None, torch.full((6,), -1), DatasetError, "labelled"),
        ("edge_index", None, torch.zeros(3, 4).long(), DatasetError, r"shape \[3, 4\]"),
        ("test_mask", None, torch.zeros(6, 2), SplitError, "torch.float32"),
        ("test_mask", None, torch.ones(6, 3).bool(), SplitError, r"shape \[6, 3\]"),
        ("val_mask", None, None, DatasetError, "val_mask"),
        ("classes", None, 2, DatasetError, "y is 2 at node 2; classes are 0 to 1"),
    ],
)
def test_one_wrong_value_or_tensor(field, where, value, error, message):
    if where is not None:
        changed = small_graph()[field].clone()
        changed[where] = value
        value = changed
    with pytest.raises(error, match=message):
        check_data(small_graph(**{field: value}))


def test_what_differs_from_the_published_statistics_is_named():
    """Shares are those of every split, of the labelled nodes."""
    y = torch.where(torch.arange(40) < 24, torch.arange(40) % 2, -1)
    masks = dict(zip(MASKS, stratified_splits(y, (50, 25, 25), range(10)), strict=True))
    data = Data(x=torch.ones(40, 1), edge_index=torch.empty(2, 7), y=y, **masks)
    published = Statistics(40, 7, 1, 2, (50, 25, 25))

    def differing(**changes):
        return compare(DatasetSpec("own", None, replace(published, **changes)), data)

    assert differing() == differing(entries=None) == []
    for field in ("nodes", "entries", "features", "classes"):
        held = getattr(published, field)
        assert differing(**{field: held + 1}) == [f"{field} {held} (published {held + 1})"]
    moved = int(data.train_mask[:, 7].nonzero()[0])
    data.train_mask[moved, 7], data.val_mask[moved, 7] = False, True
    shares = ["train_mask 45.8 % (published 50 %)", "val_mask 29.2 % (published 25 %)"]
    assert differing() == shares
    for name in MASKS:
        data[name] = data[name][:, :7]
    assert differing() == ["splits 7 (published 10)"]


def test_entries_are_symmetric_coalesced_and_looped_on_top():
    # 0→1 one way, 1→2 both ways and twice, a self-loop at 2, node 3 isolated.
    edges = torch.tensor([[0, 1, 2, 1, 2], [1, 2, 1, 2, 2]])
    found = Counter(map(tuple, entries(edges, num_nodes=4).t().tolist()))
    both_ways = [(0, 1), (1, 0), (1, 2), (2, 1)]
    loops = [(0, 0), (1, 1), (2, 2), (2, 2), (3, 3)]
    assert found == Counter(both_ways + loops)
    alone = entries(torch.empty(2, 0, dtype=torch.long), num_nodes=3)
    torch.testing.assert_close(alone, torch.tensor([[0, 1, 2], [0, 1, 2]]))
    with pytest.raises(DatasetError, match="names node 4, but the nodes are 0 to 3"):
        entries(torch.tensor([[0], [4]]), num_nodes=4)
