"""What a step leaves in a model, its gradients and whatever else it holds. Called by trial.worker; loads torch."""
