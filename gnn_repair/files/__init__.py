"""Saving and loading values: safetensors with a JSON header and a checksum, whole or not at all."""

from gnn_repair.atomic import as_path, cannot_write, replacing, scratch_folder
from gnn_repair.files.headers import check_fields, parse_json
from gnn_repair.files.tensors import (
    INDEX,
    REAL,
    check_tensor,
    checksum,
    contents_of,
    load_tensors,
    save_tensors,
)

__all__ = [
    "INDEX",
    "REAL",
    "as_path",
    "cannot_write",
    "check_fields",
    "check_tensor",
    "checksum",
    "contents_of",
    "load_tensors",
    "parse_json",
    "replacing",
    "save_tensors",
    "scratch_folder",
]
