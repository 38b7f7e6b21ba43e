"""The report page: what a finished study has to show, as one document, and the file that shows it.

Called by cli_report and session.
"""
