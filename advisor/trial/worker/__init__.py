"""What a trial does in the child process. Loads torch; started by trial.worker_main and by trial.ranks."""
