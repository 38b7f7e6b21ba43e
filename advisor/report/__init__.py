"""Explain: tables, reasons, ledger, live display."""
