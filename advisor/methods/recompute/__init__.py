"""Methods that run a part of the forward pass again instead of keeping its activations. In the catalogue."""
