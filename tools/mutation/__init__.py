"""Mutation testing: change one thing in a module, and see whether its tests notice.

    python -m tools.mutation --module gnn_repair/oracle/certificate.py --jobs 2

A mutant that no test kills is a line that could be wrong without anybody noticing.
"""
