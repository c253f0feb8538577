"""The command line: parses and prints, nothing else."""

from gnn_repair.cli.main import app, main

__all__ = ["app", "main"]
