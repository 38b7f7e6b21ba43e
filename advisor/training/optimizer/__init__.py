"""The optimizer of a training: how it is built and stepped, on whose parameters, and what took its place.

Loads torch.

Called by measure, methods and training.
"""
