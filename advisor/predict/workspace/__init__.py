"""Workspace that CUDA kernels allocate, from shapes. Loads torch; read by trace and cuda."""
