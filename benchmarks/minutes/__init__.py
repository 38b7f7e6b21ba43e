"""What a few minutes of momadvise buy: its advice, measured in turn with settings that a person might try."""
