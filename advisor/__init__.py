"""momadvise: measure which memory optimization methods and batch size to train with.

The names below are resolved when they are first used, so that ``import advisor`` loads neither torch nor optuna.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from advisor.version import __version__

if TYPE_CHECKING:
    from advisor.api import Answer, PolicyCheck, check, tune
    from advisor.errors import MomadviseError, UserError
    from advisor.hardware.mesh import Mesh
    from advisor.methods.setting import MethodSetting, use
    from advisor.policy.apply import apply_policy
    from advisor.policy.file import load_policy_file
    from advisor.policy.policy import Policy
    from advisor.trainers.tune_trainer import tune_lightning, tune_trainer
    from advisor.training.training import Training
    from advisor.workload.reduction import Reduction

__all__ = [
    "Answer",
    "Mesh",
    "MethodSetting",
    "MomadviseError",
    "Policy",
    "PolicyCheck",
    "Reduction",
    "Training",
    "UserError",
    "__version__",
    "apply_policy",
    "check",
    "load_policy_file",
    "tune",
    "tune_lightning",
    "tune_trainer",
    "use",
]

_HOME = {
    "Answer": "advisor.api",
    "Mesh": "advisor.hardware.mesh",
    "MethodSetting": "advisor.methods.setting",
    "MomadviseError": "advisor.errors",
    "Policy": "advisor.policy.policy",
    "PolicyCheck": "advisor.api",
    "Reduction": "advisor.workload.reduction",
    "Training": "advisor.training.training",
    "UserError": "advisor.errors",
    "apply_policy": "advisor.policy.apply",
    "check": "advisor.api",
    "load_policy_file": "advisor.policy.file",
    "tune": "advisor.api",
    "tune_lightning": "advisor.trainers.tune_trainer",
    "tune_trainer": "advisor.trainers.tune_trainer",
    "use": "advisor.methods.setting",
}


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'advisor' has no attribute {name!r}; it has: {', '.join(__all__)}")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
