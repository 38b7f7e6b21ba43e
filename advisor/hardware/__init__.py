"""What the machine is: devices, their memory and rates, profiles of machines that are not here, prices.

Called by most rooms.
"""
