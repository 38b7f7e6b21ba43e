"""A model of costs and failures, and what it proposes next.

Called by decide, option_values, search/study and session.
"""
