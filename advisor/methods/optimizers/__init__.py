"""Methods that change the optimizer, its state, or when it steps.

Called by methods, methods/distributed, methods/formats and trial.
"""
