"""Values from text and text from values: numbers with units, ranges, paths, YAML, records.

Called by most rooms.
"""
