"""Tools for working on the project; not part of the package."""
