"""Methods that keep activations in fewer bytes, or on the host. In the catalogue."""
