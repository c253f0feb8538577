"""Outputs that stand for themselves: labels, links and values, each solved in closed form."""
