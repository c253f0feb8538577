"""When a class counts as within reach and a coefficient as active: said once, used everywhere.

Oracle, study and report read these two numbers from here; the page gets them in its payload.
"""

REACHABLE = 1e-7
"""γ above this is a strict win, as in the paper: below it, rounding could have made the win."""
ACTIVE = 1e-7
"""λ above this is in use, as in the paper."""
REALIZABLE = 1e-6
"""A shift is one that reweighting can make when some λ makes it this nearly, relative to the size
of the node's contributions: shifts are float32 numbers, seven digits long."""
