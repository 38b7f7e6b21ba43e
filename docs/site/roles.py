"""Docstrings name other objects as Sphinx does (``:class:`Policy```); on the site such a name is code."""

from __future__ import annotations

import re
from typing import Any

import griffe


class Roles(griffe.Extension):
    """Turn roles into code."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for every object that is read."""
        if obj.docstring is not None:
            obj.docstring.value = re.sub(r":\w+:`~?\.?([^`]+)`", r"`\1`", obj.docstring.value)
