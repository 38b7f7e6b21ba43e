"""The child process: ``python -m advisor.trial.worker --requests FD --answers FD --lifeline FD [--ranks N]``.

Nothing heavy is imported at the top: the guardian forks off before, and stays small.
"""

from __future__ import annotations

import argparse
import faulthandler
import os

from advisor.trial.guardian import guard

__all__ = ["main"]


def main() -> None:
    """Guard, then serve requests until the parent closes the pipe."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("requests", "answers", "lifeline"):
        parser.add_argument(f"--{name}", type=int, required=True, help="inherited file descriptor")
    parser.add_argument("--ranks", type=int, default=1, help="processes that train together")
    arguments = parser.parse_args()
    for descriptor in (arguments.requests, arguments.answers, arguments.lifeline):
        os.set_inheritable(descriptor, False)
    guard(arguments.answers, arguments.lifeline, arguments.requests)
    faulthandler.enable()  # a segmentation fault leaves its Python stack in the log
    # Both load torch.
    if arguments.ranks > 1:
        from advisor.trial.launcher import launch

        launch(arguments.requests, arguments.answers, arguments.ranks)
    else:
        from advisor.trial.serving import serve

        serve(arguments.requests, arguments.answers)


if __name__ == "__main__":
    main()
