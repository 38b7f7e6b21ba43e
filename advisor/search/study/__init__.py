"""Optuna's study: what it stores, and how it is kept in step with other workers.

Called by session.
"""
