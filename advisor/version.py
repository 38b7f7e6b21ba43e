"""The version, in one place: the distribution's metadata is made from it."""

__version__ = "0.1.0"
