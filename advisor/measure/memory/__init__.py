"""Peak memory by category, on the CPU and on CUDA devices. Called by trial.worker; loads torch."""
