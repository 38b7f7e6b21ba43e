"""What one transformer block keeps for its backward pass on each rank, against formulas (Korthikanti et al. 2022)."""
