"""From candidates to the answer: leaders measured again, the winner confirmed, files written. Called by tuning."""
