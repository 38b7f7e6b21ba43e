"""Choose among measurements: scores, noise and ties, which may win, and the answer.

Called by api, report and session.
"""
