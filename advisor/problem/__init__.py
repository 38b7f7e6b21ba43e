"""What the user brings: a workload, its facts, the hardware, and a goal."""
