"""Before running: what a policy will need, from a trace without memory."""
