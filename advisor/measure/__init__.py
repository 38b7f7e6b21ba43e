"""The records of a measurement: memory, time, energy, losses, gradients.

Its folders record them and load torch; the parent reads the records.

Called by decide, report, search, session, trial and its own folders.
"""
