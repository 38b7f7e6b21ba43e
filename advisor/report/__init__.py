"""Explain an answer: tables, reasons, the live display, JSON.

Called by api, cli, cli_catalogue, session and trainers.
"""
