"""Run the tests of a trainer that contradicts the versions of this project, in an environment of its own.

``python -m tests.exports.elsewhere NAME FOLDER`` creates a virtual environment with that trainer in FOLDER, or uses the
one that is there, and trains in it what ``cells.py`` names for it, beside the wrapper. It needs a package registry.
torchtitan, and Lightning with DeepSpeed, need CUDA devices: FOLDER must be an environment of ``.ci/cuda --install
FOLDER``, whose software devices they train on. axolotl and LLaMA-Factory train in such a folder what needs a GPU, with
the torch that is there, and in any other what trains on a CPU.
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
    "filelock msgspec nvidia-ml-py optuna platformdirs psutil rich scipy sqlalchemy threadpoolctl "
    "pytest pytest-timeout pytest-xdist"
)
"""What this project and its tests need of what no trainer brings."""
ON_DEVICES = ("lightning", "torchtitan")
"""Names of those that train on CUDA devices alone."""
FOR_ANOTHER_TORCH = re.compile(r"torch\b|torchaudio|torchdata|torchvision|xformers")
"""What is not installed where torch is not the one that a trainer asks for; its tests need none of it."""
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
    has_devices = (given.folder / "installed").exists()  # as .ci/cuda leaves it
    if given.trainer in ON_DEVICES and not has_devices:
        parser.error(f"{given.folder} is no environment of .ci/cuda --install")
    _install(given.trainer, python, has_devices)
    chosen = WITH_DEEPSPEED if given.trainer == "lightning" else given.trainer
    folders = ["tests/gpu"] if has_devices and given.trainer not in ON_DEVICES else ["tests/exports", "tests/gpu"]
    tests = [python, "-m", "pytest", "-n0", "-p", "no:anyio", "-k", chosen, *folders]
    variables = dict(variables_of(export_policy(file_of(*VARIABLES), get_target(given.trainer))))
    if has_devices:
        tests = [python, *ON_TWO, *tests]
        (compiler,) = given.folder.absolute().glob("lib/python*/site-packages/nvidia/cu[0-9]*")
        variables["CUDA_HOME"] = str(compiler)
    return subprocess.run(tests, cwd=ROOT, env={**os.environ, **variables}, check=False).returncode


def _install(trainer: str, python: Path, has_devices: bool) -> None:
    target = get_target(trainer)
    pip = [str(python), "-m", "pip"]
    pins = re.findall(r"^(?:torch|pytest[a-z-]*|hypothesis)==.*", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    wanted = [f"{target.library}=={target.version}", *BESIDE[trainer], *OURS.split(), *pins]
    if has_devices:
        wanted = [one for one in wanted if not one.startswith("torch==")]
    if has_devices and trainer not in ON_DEVICES:
        subprocess.run([*pip, "install", "-q", "--no-deps", wanted[0]], check=True)
        wanted = [*_asked_for(target.library, python), *wanted[1:]]
    subprocess.run([*pip, "install", "-q", *wanted], cwd=ROOT, check=True)
    if trainer == "llamafactory":
        # transformers imports it wherever it is, and it fails beside a torch that was built otherwise.
        subprocess.run([*pip, "uninstall", "-q", "-y", "torchvision", "torchaudio"], check=True)
    if trainer == "torchtitan":
        # torchtitan imports it wherever it is, and torchao 0.18 fails there beside triton 3.9, which torch 2.15 brings.
        subprocess.run([*pip, "uninstall", "-q", "-y", "torchao"], check=True)


def _asked_for(library: str, python: Path) -> list[str]:
    """What an installed library requires, but for torch and what is built for one version of it."""
    said = "import importlib.metadata as found, sys; print(*found.requires(sys.argv[1]) or (), sep='\\n')"
    run = subprocess.run([python, "-c", said, library], capture_output=True, text=True, check=True)
    lines = run.stdout.splitlines()
    return [line for line in lines if "extra ==" not in line and not FOR_ANOTHER_TORCH.match(line)]


if __name__ == "__main__":
    sys.exit(main())
