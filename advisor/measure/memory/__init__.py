"""Peak memory by category, on the CPU and on CUDA devices.

Loads torch.

Called by measure/batches, measure/state, predict and trial.
"""
