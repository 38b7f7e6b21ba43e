"""The child process: ``python -m advisor.trial.worker_main --requests FD --answers FD --lifeline FD``.

With ``--ranks`` it is the launcher of several processes, with ``--node-rank`` it follows that of another machine.

Nothing heavy is imported at the top: the guardian forks off before, and stays small.
"""

from __future__ import annotations

import argparse
import faulthandler
import os

from advisor.trial.guardian import guard
from advisor.trial.nodes import Nodes
from advisor.workload.quick_imports import quick_imports

__all__ = ["main"]


def main() -> None:
    """Guard, then serve requests until the parent closes the pipe."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("requests", "answers", "lifeline"):
        parser.add_argument(f"--{name}", type=int, required=True, help="inherited file descriptor")
    parser.add_argument("--ranks", type=int, default=1, help="processes that train together")
    parser.add_argument("--nodes", type=int, default=1, help="machines that train together")
    parser.add_argument("--endpoint", default="", help="host:port of the first of them")
    parser.add_argument("--node-rank", type=int, default=0, help="number of this one")
    arguments = parser.parse_args()
    for descriptor in (arguments.requests, arguments.answers, arguments.lifeline):
        os.set_inheritable(descriptor, False)
    guard(arguments.answers, arguments.lifeline, arguments.requests)
    faulthandler.enable()  # a segmentation fault leaves its Python stack in the log
    nodes = Nodes(count=arguments.nodes, endpoint=arguments.endpoint, rank=arguments.node_rank)
    # All of these load torch.
    if nodes.rank > 0:
        with quick_imports():
            from advisor.trial.ranks.join import join_launch

        join_launch(nodes)
    elif arguments.ranks > 1:
        with quick_imports():
            from advisor.trial.ranks.launcher import launch

        launch(arguments.requests, arguments.answers, arguments.ranks, nodes)
    else:
        with quick_imports():
            from advisor.trial.worker.serving import serve

        serve(arguments.requests, arguments.answers)


if __name__ == "__main__":
    main()
