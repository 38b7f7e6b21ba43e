"""Explain an answer: tables, reasons, the live display, JSON.

Called by api, cli, session and trainers.
"""
