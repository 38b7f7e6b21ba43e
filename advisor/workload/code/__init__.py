"""Digests of a workload's code: what of it runs, without what changes nothing.

Called by measure, session, trainers and workload.
"""
