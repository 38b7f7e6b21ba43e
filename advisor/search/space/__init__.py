"""Which combinations exist on this machine for this workload, and which have been tried.

Called by decide, report, search/propose, search/study and session.
"""
