"""What a study stores and shows: its settings, records, stores, averages and tables.

Nothing here needs PyTorch, so that looking at results is quick.
"""
