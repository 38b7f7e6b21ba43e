"""Methods that compute or store weights in lower number formats. In the catalogue."""
