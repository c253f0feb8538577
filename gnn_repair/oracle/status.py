"""What became of an LP; a kernel's FAILED asks for the fallback."""

OPTIMAL, FALLBACK, FIXED, FAILED = 0, 1, 2, 3
