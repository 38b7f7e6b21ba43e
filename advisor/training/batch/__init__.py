"""Batches as trees of tensors, their micro-batches, and how much each counts.

Loads torch.

Called by integrations, measure, methods, predict, training and trial.
"""
