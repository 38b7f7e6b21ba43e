"""Methods that run part of the forward pass again instead of keeping its activations.

Called by methods, methods/distributed, methods/kernels, methods/optimizers, methods/pipeline and
methods/tensor_parallel.
"""
