"""Run one policy in another process and always come back with an outcome. Called by session."""
