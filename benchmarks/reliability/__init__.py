"""Injects faults into runs and damages studies, and records whether momadvise copes."""
