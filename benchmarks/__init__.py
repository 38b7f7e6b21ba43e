"""Measurements that are commands: ``python -m benchmarks.NAME``. Their figures are ratios within one run."""
