"""Train and tune inside of the trainers that people have.

Called by trainers.
"""
