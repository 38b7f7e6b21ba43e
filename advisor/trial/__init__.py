"""Run one policy in another process, and always come back with an outcome.

Called by cli, decide, report, session and its own folders.
"""
