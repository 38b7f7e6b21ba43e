"""Explain an answer: tables, reasons, the live display, JSON.

Called by api, cli, cli_catalogue, cli_export, session, trainers and its own folders.
"""
