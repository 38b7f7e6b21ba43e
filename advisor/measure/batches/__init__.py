"""Batches: how they are made, where their samples are, how they split. Called by trial.worker; loads torch."""
