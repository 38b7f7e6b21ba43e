"""The part of a traceback that concerns the user's code, as text."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path

__all__ = ["user_traceback"]

_PACKAGE = Path(__file__).resolve().parent.parent
_MACHINERY = (_PACKAGE / "trial", _PACKAGE / "workload", _PACKAGE / "measure")
_LIBRARIES = tuple(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib"))

_PASSING_ON = ("__torch_function__", "__torch_dispatch__")
"""Files whose modes run between the model and torch."""
_WITHOUT_COMPILER = (("torch/_compile.py", "inner"), ("torch/_dynamo/eval_frame.py", "_fn"))
"""The torch file that keeps the compiler out of what such a mode calls."""
_CALL_OF_A_MODULE = ("torch/nn/modules/module.py", "_wrapped_call_impl")


def user_traceback(error: BaseException) -> str:
    """Format an exception without the frames that do not help the user.

    The text starts at the first frame of the user's code; momadvise's frames before or between the user's are left out,
    those of libraries stay. Momadvise's innermost frames also stay: one of our hooks raised, and hiding it would blame
    the user. If the user has no frame, the text starts at the call of a library's model; without such a call, only
    frames of the trial machinery are left out.
    """
    formatted = traceback.TracebackException.from_exception(error)
    _strip(formatted)
    return "".join(formatted.format())


def _strip(formatted: traceback.TracebackException) -> None:
    formatted.stack = traceback.StackSummary.from_list(_kept(list(formatted.stack)))
    for chained in (formatted.__cause__, formatted.__context__, *(formatted.exceptions or ())):
        if chained is not None:
            _strip(chained)


def _kept(frames: list[traceback.FrameSummary]) -> list[traceback.FrameSummary]:
    user = [index for index, frame in enumerate(frames) if _is_user(frame.filename)]
    user = user or [index for index, frame in enumerate(frames) if _is(frame, *_CALL_OF_A_MODULE)][:1]
    if user:
        return [
            frame
            for index, frame in enumerate(frames)
            if index >= user[0]
            and (index > user[-1] or not _inside(frame.filename, (_PACKAGE,)))
            and not (index < len(frames) - 1 and _passes_on(frame))
        ]
    return [frame for frame in frames if not _inside(frame.filename, _MACHINERY) and not _is_bootstrap(frame.filename)]


def _passes_on(frame: traceback.FrameSummary) -> bool:
    """Whether the frame only passes a call from the model to torch."""
    if frame.name in _PASSING_ON and _inside(frame.filename, (_PACKAGE,)):
        return True
    return any(_is(frame, *passing) for passing in _WITHOUT_COMPILER)


def _is(frame: traceback.FrameSummary, file: str, name: str) -> bool:
    return frame.name == name and Path(frame.filename).as_posix().endswith(file)


def _is_user(filename: str) -> bool:
    if _is_bootstrap(filename) or "site-packages" in filename or "dist-packages" in filename:
        return False
    return not _inside(filename, (_PACKAGE, *_LIBRARIES))


def _is_bootstrap(filename: str) -> bool:
    """Whether the frame is the interpreter's own import machinery."""
    return filename.startswith("<frozen")


def _inside(filename: str, folders: tuple[Path, ...]) -> bool:
    path = Path(filename).resolve()
    return any(path.is_relative_to(folder) for folder in folders)
