"""Several processes that run one trial together, on one machine or several. Started by trial.worker_main."""
