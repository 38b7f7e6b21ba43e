"""Values from text and text from values: numbers with units, ranges, paths, YAML, records. Used by every room."""
