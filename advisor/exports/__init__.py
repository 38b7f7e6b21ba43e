"""What the configuration of a trainer can say of a policy: a table per trainer, and the files written from it.

Called by api, cli_export and report.
"""
