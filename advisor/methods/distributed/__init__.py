"""Methods that spread a training over several devices. In the catalogue."""
