"""What happens to the tensors that autograd saves: one pipeline, to which methods add stages.

Loads torch.

Called by methods and training.
"""
