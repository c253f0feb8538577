"""What became of an LP; a kernel's FAILED asks for a second attempt."""

OPTIMAL, FALLBACK, FIXED, FAILED, UNCERTIFIED = 0, 1, 2, 3, 4
