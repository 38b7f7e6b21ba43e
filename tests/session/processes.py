"""Look after processes in tests: which ones belong to a command, and whether any is left."""

import time

import psutil

__all__ = ["descendants", "wait_until_gone"]


def descendants(pid: int) -> list[psutil.Process]:
    """Every process below this one."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def wait_until_gone(processes: list[psutil.Process], seconds: float = 15.0) -> list[psutil.Process]:
    """Wait for processes to end.

    Returns:
        Those that are still there; zombies, which nobody has reaped yet, count as ended.
    """
    deadline = time.monotonic() + seconds
    left = processes
    while left and time.monotonic() < deadline:
        left = [process for process in left if _runs(process)]
        time.sleep(0.1)
    return left


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
