"""One run of a model, recorded operation by operation, and what can be read off the record."""
