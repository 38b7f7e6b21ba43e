"""Propose the next policy to try, without running anything."""
