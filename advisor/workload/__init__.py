"""What the user brings: the model's file, its functions, what it reads, and the facts that a probe learns of it.

Called by most rooms.
"""
