"""Methods that compute the same with other kernels: compiled, fused, chunked, in another layout.

Called by methods, methods/tensor_parallel, trainers and trial.
"""
