"""Buffers that CUDA kernels take inside of themselves, from shapes. Loads torch; read by trace and cuda."""
