"""Benchmarks as commands: ``python -m benchmarks.NAME``. Their results are ratios within one run."""
