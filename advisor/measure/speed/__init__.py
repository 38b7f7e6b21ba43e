"""What a device does in a second, and what it draws. Loads torch."""
