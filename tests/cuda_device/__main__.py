"""Runs a command on a machine with software GPUs: ``python -m tests.cuda_device [OPTION...] COMMAND...``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.cuda_device.machine import H100, HOST_BYTES, Gpu, Machine


def _gpu(text: str) -> Gpu:
    name, memory, capability = text.split("/")
    return Gpu(name, int(memory), capability)


def main() -> int:
    """Run it, and give back its status."""
    parser = argparse.ArgumentParser(prog="python -m tests.cuda_device", description=__doc__)
    parser.add_argument("--count", type=int, default=1, metavar="N", help="N equal GPUs")
    parser.add_argument(
        "--gpu", type=_gpu, action="append", metavar="NAME/MIB/MAJOR.MINOR",
        help=f"the GPU, or once for each in the order of the PCI bus (default: {H100})",
    )  # fmt: skip
    parser.add_argument("--driver", default="13.0", help="the CUDA version that the driver is for (default: 13.0)")
    parser.add_argument("--no-nvml", action="store_true", help="a machine without NVML")
    parser.add_argument("--nvml-lacks", action="append", default=[], metavar="FUNCTION", help="one that NVML lacks")
    parser.add_argument("--time", type=float, default=1, help="how long the GPU takes, as a multiple (default: 1)")
    parser.add_argument("--trace", type=Path, help="file for the names of the kernels that were launched")
    parser.add_argument("--host-gib", type=float, default=HOST_BYTES / 2**30, help="private memory of a process")
    parser.add_argument("--values", action="store_true", help="compute on the CPU what kernels would")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    machine = Machine(
        gpus=tuple(given.gpu or [H100]) * given.count,
        driver=given.driver,
        nvml=not given.no_nvml,
        nvml_lacks=tuple(given.nvml_lacks),
        time=given.time,
        trace=given.trace and given.trace.absolute(),
        host_bytes=int(given.host_gib * 2**30),
        values=given.values,
    )
    return machine.run(given.command).returncode


if __name__ == "__main__":
    sys.exit(main())
