"""What a step leaves in a model, its gradients and whatever else it holds. Loads torch."""
