"""What minutes of momadvise are worth: its advice, measured in turn with what else a person may set."""
