"""Which combinations exist on this machine for this workload, and which of them were tried."""
