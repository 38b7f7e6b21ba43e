"""Ranks that meet in every step, as those of every distributed method do. Tests append who misbehaves, and how."""

import json
import os
import signal
import socket
import sys
import time
from pathlib import Path

import psutil
import torch
import torch.distributed as dist

HOW = ""
WHO = ()
STEP = 2
FOLDER = ""
steps = 0


def build_model():
    Path(FOLDER, f"rank-{dist.get_rank()}").write_text(str(os.getpid()))
    return torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))


def make_batch(batch_size):
    return torch.randn(batch_size, 64), torch.randint(0, 10, (batch_size,))


def compute_loss(model, batch):
    global steps
    steps += 1
    if steps == STEP and dist.get_rank() in WHO:
        misbehave()
    if HOW == "outgrows" and dist.get_rank() in WHO and len(batch[0]) > 4:
        torch.zeros(2**26)
    dist.all_reduce(torch.zeros(1))
    return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])


def misbehave():
    if HOW == "is killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif HOW == "is stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif HOW == "raises":
        raise ValueError("my mistake")
    elif HOW == "calls sys.exit":
        sys.exit(3)
    elif HOW == "exits":
        if os.fork() == 0:  # as a loader of data does, which then holds every connection of this process
            time.sleep(600)
        os._exit(0)
    elif HOW == "allocates":
        torch.zeros(2**26)
    elif HOW == "looks around":
        Path(FOLDER, "listening").write_text(json.dumps(listening()))
    elif HOW == "disconnects":
        dist.destroy_process_group()


def listening():
    """Whatever waits to be reached, of the launcher and everything below it: process number, kind and address."""
    launcher = psutil.Process().parent()
    return [
        (process.pid, socket.SocketKind(one.type).name, *one.laddr)
        for process in (launcher.parent(), launcher, *launcher.children(recursive=True))
        for one in process.net_connections("inet")
        if one.status in (psutil.CONN_LISTEN, psutil.CONN_NONE)
    ]
