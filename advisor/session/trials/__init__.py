"""Run trials and make candidates of them: sizes, comparisons in turn, the fidelity guard.

Called by session and session/answer.
"""
