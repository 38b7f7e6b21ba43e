"""Buffers that CUDA kernels allocate for themselves, from the shapes of their operands.

Loads torch.

Called by predict/cuda and predict/trace.
"""
