"""A worker without torch: it speaks the protocol, is guarded like the real one, and misbehaves when asked.

The workload's name says how.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from advisor.trial.folder import TrialFolder
from advisor.trial.guardian import guard
from advisor.trial.outcome import Outcome
from advisor.trial.protocol import Finished, LineReader, Progress, Ready, Request, Unwritten, encode_line
from advisor.trial.result import TrialResult
from advisor.trial.spec import TrialSpec

_SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


def note(folder: TrialFolder, name: str, process: int) -> None:
    (folder.path / name).write_text(str(process))


def behave(spec: TrialSpec, folder: TrialFolder, answers: int) -> TrialResult | None:
    """What a trial of this name does; the result to store, if it gets that far."""
    name = spec.workload.name
    result: Any = spec.ended(Outcome.OK, f"process {os.getpid()}")
    if name == "exits":
        os._exit(0)
    elif name == "aborts":
        os.abort()
    elif name == "is killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif name == "hangs":
        note(folder, "worker", os.getpid())
        time.sleep(600)
    elif name == "hangs and ignores signals":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            time.sleep(600)
    elif name == "leaves children":
        note(folder, "child", subprocess.Popen(_SLEEP).pid)
        note(folder, "stranger", subprocess.Popen(_SLEEP, start_new_session=True).pid)
        note(folder, "worker", os.getpid())
        time.sleep(600)
    elif name == "leaves a daemon":
        if os.fork() == 0:
            os.setsid()
            daemon = os.fork()
            if daemon == 0:
                time.sleep(600)
            note(folder, "child", daemon)
            os._exit(0)
        os.wait()
    elif name == "ends its group":
        os.killpg(0, signal.SIGTERM)
    elif name == "writes half a result":
        folder.result.write_text('{"key": "')
        return None
    elif name == "writes into our pipe":
        os.write(answers, b"hello\n")
        time.sleep(600)
    elif name == "crashes after its result":
        folder.write_result(result)
        os._exit(3)
    elif name == "stores its result and hangs":
        folder.write_result(result)
        time.sleep(600)
    elif name == "prints":
        print("garbage " * 2000, "\x00\xff")
        print("the last line", file=sys.stderr)
    elif name == "reads its input":
        return msgspec.structs.replace(result, reason=repr(sys.stdin.read()))
    elif name == "looks around":
        kept = {name: os.environ.get(name) for name in ("TOKENIZERS_PARALLELISM", "PYTORCH_CUDA_ALLOC_CONF")}
        score = Path("/proc/self/oom_score_adj").read_text().strip()
        return msgspec.structs.replace(result, reason=f"{kept} {score}")
    elif name == "reports":
        os.write(answers, encode_line(Progress(text="half way")))
    elif name == "finds the disk full":
        os.write(answers, encode_line(Unwritten(reason="No space left on device")))
        time.sleep(600)
    return result


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--start", default="")
    for name in ("requests", "answers", "lifeline"):
        parser.add_argument(f"--{name}", type=int)
    arguments, _ = parser.parse_known_args()  # where its ranks would run is nothing to it
    guard(arguments.answers, arguments.lifeline, arguments.requests)
    if arguments.start == "never":
        time.sleep(600)
    if arguments.start == "crash":
        print("no such library")
        os._exit(7)
    os.write(arguments.answers, encode_line(Ready()))
    reader = LineReader(arguments.requests)
    while (lines := reader.read()) is not None:
        for line in lines:
            request = msgspec.json.decode(line, type=Request)
            folder = TrialFolder(Path(request.folder))
            descriptor = os.open(folder.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(descriptor, 1)
            os.dup2(descriptor, 2)
            result = behave(request.spec, folder, arguments.answers)
            if result is not None:
                folder.write_result(result)
            clean = request.spec.workload.name != "leaks"
            os.write(arguments.answers, encode_line(Finished(key=folder.path.name, clean=clean)))


if __name__ == "__main__":
    main()
