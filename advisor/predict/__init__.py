"""Before running: what a policy will need, from a trace without memory. Called by trial and session."""
