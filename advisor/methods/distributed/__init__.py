"""Methods that spread a training over several devices.

Called by methods.
"""
