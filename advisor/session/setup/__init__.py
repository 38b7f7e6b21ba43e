"""What is decided before the first candidate: devices, limits, ranks, versions, what an earlier study still says."""
