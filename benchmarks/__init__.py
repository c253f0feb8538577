"""Measurements of speed and accuracy, each beside a peer's: ``python -m benchmarks``."""
