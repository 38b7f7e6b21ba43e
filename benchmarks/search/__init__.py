"""Evaluates search strategies on exhaustive tables of real workloads and on simulated problems."""
