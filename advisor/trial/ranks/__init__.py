"""Several processes that run one trial together, on one machine or several.

Loads torch.

Called by trial.
"""
