"""The parent's side of a trial: start the child, talk to it, end it.

Loads no torch.

Called by cli and session.
"""
