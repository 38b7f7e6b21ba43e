"""Compiles the software CUDA device for the torch of this Python: ``python -m tests.cuda_device.build``.

Needs g++, a build of torch for CUDA 13, and NVIDIA's headers that do not come with it (README.md names the packages).
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

__all__ = ["build", "can_build", "library_folder"]

_HERE = Path(__file__).parent
_SOURCES = sorted((_HERE / "source").iterdir())
_VALUES = sorted((_HERE / "values").iterdir())
_FLAGS = ("-std=c++17", "-O1", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter")
_PREFIXES = "cuda|__cuda|cublas|cudnn|cufft|cusparse|cusolver|nccl"
_NOT_SUPPORTED = 801
"""``CUDA_ERROR_NOT_SUPPORTED``."""


def can_build() -> str:
    """Why the device cannot be built here; empty if it can."""
    if shutil.which("g++") is None:
        return "no g++"
    if not (_packages() / "nvidia" / "cu13" / "include" / "cuda_runtime_api.h").exists():
        return "no torch that is built for CUDA 13"
    return ""


def library_folder() -> Path:
    """Where the library lies, or would lie: another one for every torch and every version of the source."""
    state = hashlib.sha256(importlib.metadata.version("torch").encode())
    for source in (*_SOURCES, *_VALUES, Path(__file__)):
        state.update(source.read_bytes())
    return _HERE / "build" / state.hexdigest()[:16]


def build() -> Path:
    """Compile and link, unless that has been done; returns the folder of the library."""
    finished = library_folder()
    if finished.exists():
        return finished
    finished.parent.mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=finished.parent))
    include = _packages() / "nvidia"
    includes = [
        f"-isystem{include / part / 'include'}" for part in ("cu13", "cudnn", "nccl")
    ] + [f"-isystem{include / 'cu13' / 'include' / 'cccl'}"]  # fmt: skip
    objects = []
    for source in _SOURCES:
        if source.suffix == ".cpp":
            objects.append(folder / f"{source.stem}.o")
            _run("g++", *_FLAGS, *includes, "-c", source, "-o", objects[-1])
    rest = folder / "rest.c"
    rest.write_text(_rest(objects, include / "cu13" / "include" / "cuda.h"), encoding="utf-8")
    _run("gcc", "-O1", "-fPIC", "-w", "-c", rest, "-o", folder / "rest.o")
    _run(
        "g++", "-shared", "-Wl,-soname,libcuda.so.1", "-o", folder / "libcuda.so.1",
        *objects, folder / "rest.o", "-ldl", "-lpthread",
    )  # fmt: skip
    _compute_values(folder)
    # One library under all its names; NVML's in a folder of its own, so that a machine can be without it.
    (folder / "nvml").mkdir()
    (folder / "libcuda.so").symlink_to("libcuda.so.1")
    (folder / "nvml" / "libnvidia-ml.so.1").symlink_to("../libcuda.so.1")
    with contextlib.suppress(OSError):  # another process was faster
        folder.rename(finished)
    return finished


def _compute_values(folder: Path) -> None:
    """The library that computes what kernels would, which is loaded where torch is."""
    torch = _packages() / "torch"
    objects = []
    for source in _VALUES:
        if source.suffix == ".cpp":
            objects.append(folder / f"values-{source.stem}.o")
            _run("g++", "-std=c++20", *_FLAGS[1:], f"-isystem{torch / 'include'}", "-c", source, "-o", objects[-1])
    libraries = (f"-L{torch / 'lib'}", f"-Wl,-rpath,{torch / 'lib'}", "-ltorch_cpu", "-lc10")
    _run("g++", "-shared", "-o", folder / "libvalues.so", *objects, *libraries, "-ldl")


def _rest(objects: list[Path], driver_header: Path) -> str:
    """Every function that torch and its companions import and that has no source here: it succeeds and does nothing.

    What is left of the driver is not supported.
    """
    written = set(_symbols("--defined-only", objects))
    libraries = [path for pattern in ("torch/lib/*.so", "bitsandbytes/libbitsandbytes_cuda13*.so", "torchao/*.so")
                 for path in sorted(_packages().glob(pattern))]  # fmt: skip
    imported = {name for name in _symbols("-D", libraries) if re.match(f"({_PREFIXES})", name)}
    stubs = dict.fromkeys(imported, 0)
    for name in re.findall(r"^CUresult CUDAAPI (cu\w+)\(", driver_header.read_text(encoding="utf-8"), re.MULTILINE):
        if not {name, f"{name}_v2", f"{name}_v3"} & written:
            stubs[name] = _NOT_SUPPORTED
    return "".join(f"int {name}(void) {{ return {value}; }}\n" for name, value in stubs.items() if name not in written)


def _symbols(which: str, files: list[Path]) -> list[str]:
    listed = _run("nm", *(("-D", "--undefined-only") if which == "-D" else (which, "-g")), *files)
    return [re.sub("@.*", "", line.split()[-1]) for line in listed.splitlines() if line and not line.endswith(":")]


def _packages() -> Path:
    spec = importlib.util.find_spec("torch")
    assert spec is not None, "torch must be installed"
    assert spec.origin is not None, "torch must be a package with files"
    return Path(spec.origin).parents[1]


def _run(*command: str | Path) -> str:
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    if result.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{result.stderr}")
    return result.stdout


if __name__ == "__main__":
    print(build())
