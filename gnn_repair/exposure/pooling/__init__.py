"""Models that pool the nodes of each graph and then classify it: graphs are the recipients."""
