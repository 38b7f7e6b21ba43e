"""Methods that change which weights are trained. In the catalogue."""
