"""What a CUDA device would do with a traced step: its kernels, formats and allocator.

Loads torch.

Called by trial.
"""
