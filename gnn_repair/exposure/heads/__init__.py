"""Node-wise heads: what a model does to a node after its last aggregation, as a short graph."""
