"""What becomes of a run that something hits, and of a study that something damages."""
