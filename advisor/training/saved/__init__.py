"""What becomes of the tensors that autograd saves: one pipeline, which Training runs and methods add stages to."""
