"""A choice of methods and batch: the record, its file, its application, the emitted wrapper.

Called by most rooms.
"""
