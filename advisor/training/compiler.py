"""Whether ``torch.compile`` can make kernels on this machine."""

from __future__ import annotations

import importlib.util
import os
import shutil

import torch

__all__ = ["why_not_compiled"]


def why_not_compiled(device: torch.device) -> str:
    """Why the default backend cannot compile for a device; empty if it can.

    Kernels for a CPU are C++, those for a GPU are Triton's, whose launcher is C.
    """
    if device.type == "cuda":
        if importlib.util.find_spec("triton") is None:
            return "torch.compile needs triton for a GPU, and it is not installed; pip install triton"
        candidates = (os.environ.get("CC"), "cc", "gcc", "clang")
    else:
        candidates = (os.environ.get("CXX"), "c++", "g++", "clang++")
    if any(name and shutil.which(name.split()[0]) for name in candidates):
        return ""
    language, variable = ("C", "CC") if device.type == "cuda" else ("C++", "CXX")
    return (
        f"torch.compile needs a {language} compiler, and none was found; install gcc, or name one in the environment "
        f"variable {variable}"
    )
