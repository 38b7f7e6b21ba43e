"""What a CUDA device would do with a traced step: its kernels, formats and allocator. Called by trial; loads torch."""
