"""Methods that run part of the forward pass again instead of keeping its activations.

Called by methods, methods/distributed, methods/kernels and methods/optimizers.
"""
