"""Exposures that repairs are fitted on, and repairs written out literally."""
