"""What the child records: memory, time, energy, loss."""
