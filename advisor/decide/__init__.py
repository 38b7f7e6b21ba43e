"""Choose among measurements: score, ties, confirmation."""
