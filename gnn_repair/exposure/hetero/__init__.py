"""Graphs with several types of nodes: which type is classified, and which relation sends what."""
