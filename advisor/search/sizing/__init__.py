"""Which batch or model size to try, from the memory of a few runs.

Called by decide, report, search/propose and session.
"""
