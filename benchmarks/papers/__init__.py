"""The papers' tables as commands: one module for each paper."""
