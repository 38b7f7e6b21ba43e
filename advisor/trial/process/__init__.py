"""The parent's side of a trial: starting the child, talking to it, ending it. Called by session; loads no torch."""
