"""What the backbones are called, plain text, so that tables load no architecture."""

TITLES = {
    "gcn": "GCN",
    "gat": "GAT",
    "sage": "SAGE",
    "gatv2": "GATv2",
    "graphconv": "GraphConv",
    "sgc": "SGC",
    "mixhop": "MixHop",
    "h2gcn": "H2GCN",
}
"""By name, in the paper's order."""
