"""What a pipeline declares, and what it refuses before anything runs."""

from __future__ import annotations

import pytest

from advisor.errors import MethodRefusedError
from advisor.hardware.mesh import Mesh
from advisor.methods.compose import conflict_between, judge
from advisor.methods.pipeline.pipeline import Pipeline
from advisor.methods.use import use
from tests.methods.tiny import cpu_hardware
