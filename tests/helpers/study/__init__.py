"""Records and graphs small enough for a study in a test."""
