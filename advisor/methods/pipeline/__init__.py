"""Pipeline parallelism for any model with a chain of blocks.

Called by methods.
"""
