"""Ranks of which one misbehaves: ``MISBEHAVIOUR`` says how, ``MISBEHAVING_RANK`` which."""

import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist

BATCH_SIZE = 4
_STEP = 4  # the batches are known by then, and the ranks at work together


def build_model():
    rank = dist.get_rank()
    folder = os.environ.get("PROCESS_FOLDER")
    if folder:
        Path(folder, f"{rank}").write_text(str(os.getpid()))
    return torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))


def make_batch(batch_size):
    return torch.randn(batch_size, 64), torch.randint(0, 10, (batch_size,))


steps = 0


def compute_loss(model, batch):
    global steps
    steps += 1
    if steps == _STEP and dist.get_rank() == int(os.environ.get("MISBEHAVING_RANK", "-1")):
        misbehave(os.environ["MISBEHAVIOUR"])
    meet()
    return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])


def meet():
    """As every distributed method does: wait for the others in every step."""
    dist.all_reduce(torch.zeros(1))


def misbehave(how):
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif how == "raise":
        raise ValueError("my mistake")
    elif how == "exit":
        sys.exit(3)
    elif how == "exit hard":
        os._exit(0)
    elif how == "allocate":
        torch.zeros(2**28)
