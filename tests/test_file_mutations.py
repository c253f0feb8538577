"""A short run of the campaign of altered files, and whether it would notice faults."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from gnn_repair import files
from gnn_repair.errors import FileFormatError
from gnn_repair.repair import FittedRepair
from tests.campaigns.file_mutations import Parts, _Memory, campaign
from tests.campaigns.file_subjects import make_subjects

LONG = 1e9


def test_altered_files_are_refused_or_load_as_sound_values():
    found = campaign(1, LONG, most=60)
    assert found.faults == ()
    assert found.tried == 300
    # Refusals alone would prove nothing: some altered files are sound and must load.
    for kind in ("exposure", "frozen", "repair", "solution", "label solution"):
        assert found.details[f"{kind}: refused"] > 30
        assert found.details[f"{kind}: unchanged"] > 0
    assert found.details["solution: other sound values"] > 0


def test_a_checksum_that_is_not_compared_is_noticed(monkeypatch):
    def believing(metadata: dict[str, str], *_: object) -> dict[str, object]:
        return files.parse_json(metadata["header"])

    monkeypatch.setattr(files, "_opened", believing)
    found = campaign(1, LONG, most=40)
    assert any("another content" in fault for fault in found.faults)
    assert any("KeyError" in fault or "Attribute" in fault for fault in found.faults)


def test_sizes_that_only_a_header_claims_take_no_memory(tmp_path):
    (repair,) = [subject for subject in make_subjects(tmp_path) if subject.name == "repair"]
    tried = 0
    for file in repair.files:
        parts = Parts.of(file)
        header = json.loads(parts.metadata["header"])
        settings = header["settings"]
        settings = settings.get("repair", {}).get("settings", settings)
        if settings.get("hidden") is None or header["repair"] == "FeaturePerceptron":
            continue  # a kept prediction, which has no layers
        settings["hidden"] = 20_000_000
        metadata = {**parts.metadata, "header": json.dumps(header)}
        content = replace(parts, metadata=metadata).sealed().whole()
        (tmp_path / "huge").write_bytes(content)
        memory = _Memory()
        with pytest.raises(FileFormatError, match=r"claims 20000000 channels|, 20000000"):
            FittedRepair.load(tmp_path / "huge")
        assert memory.fault() == ""
        assert len(content) < 30_000
        tried += 1
    # Reweighting, set translation, alone and in folds, and the ladder.
    assert tried == 4


def test_every_member_has_one_fingerprint_or_none_has(tmp_path):
    (repair,) = [subject for subject in make_subjects(tmp_path) if subject.name == "repair"]
    for file in (repair.files[0], repair.files[-1]):
        parts = Parts.of(file)
        header = json.loads(parts.metadata["header"])
        for kept in (1, 0):
            changed = {**header, "fingerprint": header["fingerprint"][:kept]}
            metadata = {**parts.metadata, "header": json.dumps(changed)}
            (tmp_path / str(kept)).write_bytes(replace(parts, metadata=metadata).sealed().whole())
        assert FittedRepair.load(tmp_path / "0").fingerprint == ()
        with pytest.raises(FileFormatError, match="1 fingerprints for 2 members"):
            FittedRepair.load(tmp_path / "1")
