"""Methods that change which weights are trained.

Called by integrations and methods.
"""
