"""Propose, run, score, record, confirm: the one room that sees all others. Called by cli and api."""
