"""What a pipeline declares, and what it refuses before anything runs."""

from __future__ import annotations
