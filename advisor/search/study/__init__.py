"""Optuna's study: what is stored, and kept in line with other workers. Called by the loops of session."""
