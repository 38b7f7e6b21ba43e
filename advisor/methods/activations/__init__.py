"""Methods that keep activations in fewer bits, or on the host.

Called by methods and methods/adapters.
"""
