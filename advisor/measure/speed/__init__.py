"""What a device does in a second, and what it draws. Called by trial; loads torch."""
