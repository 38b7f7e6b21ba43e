"""The catalogue of methods: what each declares, and which go together.

Called by most rooms.
"""
