"""Propose the next policy to try."""
