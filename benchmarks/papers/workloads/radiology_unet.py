"""The U-Net of ``examples/unet.py`` with recomputation in the decoder too, which holds most of its activations."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[3] / "examples"))

from unet import Block, Up, build_model, build_optimizer, compute_loss, make_batch

__all__ = ["BLOCKS", "build_model", "build_optimizer", "compute_loss", "make_batch"]

BLOCKS = (Block, Up)
