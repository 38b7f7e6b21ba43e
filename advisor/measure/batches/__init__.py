"""How batches are made, where their samples are, and how they are split and weighted.

Loads torch.

Called by trial.
"""
