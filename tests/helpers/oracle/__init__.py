"""Hand-made cases of the oracle and references that share no code with it."""
