"""What the machine is: devices, their memory and rates, profiles of others, prices. Read by session and predict."""
