"""Propose the next policy to try. Called by session; runs nothing."""
