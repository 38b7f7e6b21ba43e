"""Explain: tables, reasons, live display, JSON."""
