"""What a training will take and how long, before it runs. Everything here is a prediction, and is called one."""
