"""How fast a device is, and how much power it draws.

Loads torch.

Called by measure/memory and trial.
"""
