"""What a policy will need before it runs: memory and time, from a trace.

Called by report, search, session, trial and its own folders.
"""
