"""Explain an answer: tables, reasons, the live display, JSON.

Called by api, cli, cli_catalogue, session, trainers and its own folders.
"""
