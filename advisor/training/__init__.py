"""The runtime of trials and wrappers: Training, and what methods change in it. Loads torch; knows no method."""
