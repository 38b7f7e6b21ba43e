"""Runs trials and makes candidates of them: sizes, comparisons in turn, the fidelity guard. Called by the loops."""
