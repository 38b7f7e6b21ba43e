"""Run the tests of a trainer that contradicts the versions of this project, in an environment of its own.

``python -m tests.exports.elsewhere NAME FOLDER`` creates a virtual environment with that trainer in FOLDER, or uses the
one that is there, and trains in it what ``cells.py`` names for it, beside the wrapper. It needs a package registry.
axolotl and LLaMA-Factory train on a CPU. torchtitan, and Lightning with DeepSpeed, need CUDA devices: FOLDER must be an
environment of ``.ci/cuda --install FOLDER``, whose software devices they train on.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

from advisor.exports.export import export_policy
from advisor.exports.trainers import get_target
from tests.exports.arguments import variables_of
from tests.exports.cells import VARIABLES
from tests.exports.policies import file_of

ROOT = Path(__file__).parents[2]
BESIDE = {
    "axolotl": ("bitsandbytes",),
    "lightning": (f"deepspeed=={get_target('deepspeed').version}", "cuda-toolkit[nvcc]"),
    "llamafactory": ("bitsandbytes", "liger-kernel", "torchao", "triton"),
    "torchtitan": ("wandb", "httpx"),
}
"""Name of a trainer -> what its tests need beside it."""
OURS = (
    "filelock msgspec nvidia-ml-py optuna platformdirs psutil rich scipy sqlalchemy pytest pytest-timeout pytest-xdist"
)
"""What this project and its tests need of what no trainer brings."""
ON_DEVICES = ("lightning", "torchtitan")
WITH_DEEPSPEED = "lightning_with_deepspeed"
"""The only tests of Lightning that need an environment of their own: DeepSpeed asks for the tools of a real GPU."""
ON_TWO = ("-m", "tests.cuda_device", "--count", "2", "--time", "0.05", "--values")


def main() -> int:
    """Run them, and give back pytest's status."""
    parser = argparse.ArgumentParser(prog="python -m tests.exports.elsewhere", description=__doc__)
    parser.add_argument("trainer", choices=tuple(BESIDE))
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    python = given.folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", given.folder], check=True)
    _install(given.trainer, python)
    chosen = WITH_DEEPSPEED if given.trainer == "lightning" else given.trainer
    tests = [python, "-m", "pytest", "-n0", "-p", "no:anyio", "-k", chosen, "tests/exports", "tests/gpu"]
    variables = dict(variables_of(export_policy(file_of(*VARIABLES), get_target(given.trainer))))
    if given.trainer in ON_DEVICES:
        tests = [python, *ON_TWO, *tests]
        (compiler,) = given.folder.absolute().glob("lib/python*/site-packages/nvidia/cu[0-9]*")
        variables["CUDA_HOME"] = str(compiler)
    return subprocess.run(tests, cwd=ROOT, env={**os.environ, **variables}, check=False).returncode


def _install(trainer: str, python: Path) -> None:
    target = get_target(trainer)
    pins = re.findall(r"^(?:torch|pytest[a-z-]*|hypothesis)==.*", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    if trainer in ON_DEVICES:
        pins = [pin for pin in pins if not pin.startswith("torch==")]
    wanted = [f"{target.library}=={target.version}", *BESIDE[trainer], *OURS.split(), *pins]
    subprocess.run([python, "-m", "pip", "install", "-q", *wanted], cwd=ROOT, check=True)
    if trainer == "llamafactory":
        # transformers imports it wherever it is, and it fails beside a torch that was built otherwise.
        subprocess.run([python, "-m", "pip", "uninstall", "-q", "-y", "torchvision", "torchaudio"], check=True)
    if trainer == "torchtitan":
        # torchtitan imports it wherever it is, and torchao 0.18 fails there beside triton 3.9, which torch 2.15 brings.
        subprocess.run([python, "-m", "pip", "uninstall", "-q", "-y", "torchao"], check=True)


if __name__ == "__main__":
    sys.exit(main())
