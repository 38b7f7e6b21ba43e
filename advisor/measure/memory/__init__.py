"""Peak memory by category, on the CPU and on CUDA devices.

Loads torch.

Called by measure/batches, predict and trial.
"""
