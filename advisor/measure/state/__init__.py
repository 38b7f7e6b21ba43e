"""What a step leaves behind in the model, its gradients and the rest of the process.

Loads torch.

Called by measure/batches and trial.
"""
