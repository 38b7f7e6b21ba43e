"""Propose, run, score, record, confirm: the one room that sees all others.

Called by api, cli and its own folders.
"""
