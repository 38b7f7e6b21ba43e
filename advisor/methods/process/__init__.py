"""Methods that change a setting of the whole process: its allocator, its threads. In the catalogue."""
