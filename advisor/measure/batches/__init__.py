"""Batches of a workload: how they are made, where their samples are, how they are split and weighed. Loads torch."""
