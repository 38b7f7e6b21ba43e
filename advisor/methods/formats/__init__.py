"""Methods that compute or store weights in lower number formats.

Called by methods.
"""
