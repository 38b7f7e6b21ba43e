"""Tensor and sequence parallelism, derived from what a block computes; a tensor-parallel method calls it."""
