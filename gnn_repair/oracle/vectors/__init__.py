"""The simplex method's loops, written eight numbers at a time.

This is the part of the solver that a plain numba loop would do more slowly, and nothing else: the
method itself (``simplex.py``, ``solve_kernel.py``) calls these loops
by name. ``tools/plain_simplex`` holds every one of them as a plain loop; with those in their place
the answers are the same, and it measures the difference:

    python -m tools.plain_simplex --rounds 15 \\
        --cases cora:gcn,citeseer:sgc,chameleon:gat,actor:h2gcn,squirrel:sgc

Microseconds an LP and how many times as long plain loops take (best of 15 rounds, one thread of an
AMD EPYC): K=5 C=3 0.49 and 0.83; K=20 C=7 0.92 and 1.25; K=100 C=18 B=3 3.90 and 1.92; K=1900 C=7
12.4 and 2.03; K=3000 C=18 43.0 and 1.87; Cora GCN 0.61 and 1.01; CiteSeer SGC 1.00 and 1.15;
Chameleon GAT 0.85 and 1.21; Actor H2GCN 2.58 and 1.67; Squirrel SGC 6.40 and 1.87. A handful of
terms needs none of this; where the time goes, in large sets and many classes, it halves it.
"""
