"""Tensor and sequence parallelism, derived from what a block computes.

Called by methods.
"""
