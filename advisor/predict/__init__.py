"""What training will need, told before it is run."""
