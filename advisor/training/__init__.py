"""The runtime that trials and wrappers share: Training, and what methods change in it.

Loads torch; knows no method.

Called by integrations, measure, methods, policy, predict, trial and its own folders.
"""
