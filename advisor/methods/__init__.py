"""The catalogue of methods: what each declares, and which go together.

Called by cli, decide, policy, report, search, session and its own folders.
"""
