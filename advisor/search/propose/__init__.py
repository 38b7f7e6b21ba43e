"""A model of costs and failures, and what it proposes next.

Called by api, decide, search/study and session.
"""
