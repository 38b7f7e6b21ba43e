"""What the child records: memory, time, energy, loss. Its own modules are records, which all rooms above read."""
