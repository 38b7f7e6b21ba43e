"""What is decided before the first trial: devices, limits, ranks, versions, what an earlier study still holds.

Called by api, cli, session, session/answer and session/trials.
"""
