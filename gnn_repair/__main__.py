"""``python -m gnn_repair`` is the ``gnn-repair`` command."""

from gnn_repair.cli import main

if __name__ == "__main__":
    main()
