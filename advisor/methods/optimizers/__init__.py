"""Methods that change the optimizer, its state or when it steps. In the catalogue."""
