"""From candidates to the answer: measure the leaders again, confirm the winner, write the files.

Called by session.
"""
