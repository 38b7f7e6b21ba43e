"""Choose among measurements: scores, ties, confirmation. Called by session and report; pure functions on records."""
