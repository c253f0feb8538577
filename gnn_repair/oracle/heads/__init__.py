"""Three-valued answers for models whose last aggregation is followed by a nonlinear head."""
