"""Models of every kind, each with the graph it runs on."""
