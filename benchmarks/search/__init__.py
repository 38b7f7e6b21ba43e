"""Judges search strategies: on exhaustive tables of real workloads, and on a simulated problem."""
