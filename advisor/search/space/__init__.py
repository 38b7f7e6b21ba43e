"""Which combinations exist on this machine for this workload, and which were tried. Called by session and search."""
