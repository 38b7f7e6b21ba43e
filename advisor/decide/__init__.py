"""Choose among measurements: scores, noise and ties, which may win, and the answer.

Called by api, cli, report and session.
"""
