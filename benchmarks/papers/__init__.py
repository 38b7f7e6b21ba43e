"""The papers' experiments as commands: one module per paper."""
