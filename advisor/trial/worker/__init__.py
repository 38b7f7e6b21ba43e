"""What a trial does in the child process. Loads torch; started by trial's entry points."""
