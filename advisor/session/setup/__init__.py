"""What is settled before the first trial: devices, limits, ranks, versions, what an earlier study still says."""
