"""One step on fake tensors: every allocation and operator.

Loads torch.

Called by predict/cuda and trial.
"""
