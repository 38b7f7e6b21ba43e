"""What a trial does in the child process.

Loads torch.

Called by trial and trial/ranks.
"""
