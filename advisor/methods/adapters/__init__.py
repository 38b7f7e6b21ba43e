"""Methods that change which weights are trained."""
