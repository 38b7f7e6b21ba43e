"""The command. Each verb imports what it needs when it runs, so that ``momadvise --help`` starts at once."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from advisor.report.streams import streams_kept
from advisor.text.printable import printable
from advisor.trial.process.interruption import interruptions_kept

if TYPE_CHECKING:
    from rich.console import Console

    from advisor.decide.answer import Answer

__all__ = ["main"]

_HELP = """\
usage: momadvise --goal faster|bigger|cheapest MODEL [options]
       momadvise predict MODEL         without running it: will it fit
       momadvise verify POLICY MODEL   does a policy.yaml keep what it promises
       momadvise methods [NAME]        the methods, and which apply here
       momadvise hardware              the devices and their figures

Measures on your own devices how to train MODEL (a Python file with
build_model() and make_batch(batch_size), or hf:TYPE, or a config.json), and
writes policy.yaml and wrapper.py that apply what it found.

goals
  faster       the most samples per second (the default)
  bigger       the largest model that keeps  --min-throughput 20 | 0.5x
  cheapest     cost against latency, and a pick:  --max-latency TIME,
               --max-cost USD, --deadline TIME, or where the curve bends;
               for a whole run  --iterations N;  --price USD per GPU-hour,
               --kwh-price USD
options
  --gpus 1,2,4           how many devices may train together   (default: 1; for
                         cheapest, and on N machines, 1,2,4,... up to all)
  --nnodes N --rdzv-endpoint HOST:PORT --node-rank K       on N machines
  --device NAME          cpu, cuda, cuda:1          (default: the first GPU)
  --memory-limit SIZE    per device, such as 8GiB   (default: what is free)
  --global-batch N       keep N samples per optimizer step
  --fidelity CLASS       exact, rounding, precision, lossy (default), model:
                         how far training may differ from plain training
  --search-space NAME    default, all, exact, smoke, or a YAML file
  --methods A,B          only these, and each must apply
  --sampler NAME         model, tpe, random: how the next one is chosen
  --storage URL          a database or a journal file that workers share
  --trials N, --time-limit 5m              when to stop    (40 and 3m30s)
  --output DIR           where to write       (default: momadvise-runs/..)
  --timings              where the seconds of the run went
  --json                 the result as JSON on stdout, and only that
  --version, -h, --help

The same command again goes on where it stopped; Ctrl-C keeps the best so far.
"""

_PREDICT_HELP = """\
usage: momadvise predict MODEL [options]

Says in seconds, without training anything: will MODEL fit, the largest batch
that does, and what takes the memory. One step is traced on tensors that have
shapes and no memory. Everything shown is predicted; nothing is measured.

  --policy FILE          a policy.yaml to apply      (default: plain training)
  --batch N              samples per forward pass    (default: the policy's, or
                         BATCH_SIZE of the model file)
  --device NAME          cpu, cuda, cuda:1           (default: the first GPU)
  --profile NAME         a GPU that is not here, such as h200 or h100_80gb
  --memory-limit SIZE    such as 8GiB                (default: what is free)
  --json                 the prediction as JSON on stdout, and only that
  -h, --help

Exit status: 0 it fits, 3 it does not, 1 it cannot be predicted, 2 a mistake
that you can fix.
"""

_VERIFY_HELP = """\
usage: momadvise verify POLICY MODEL [options]

Does POLICY, a policy.yaml, keep what it promises on MODEL? In a minute: three
real steps of its wrapper beside three of a plain loop, from the same seeds and
batches (losses, first gradient, updates), then peak memory and speed in turn
with plain training. Everything shown is measured; nothing is kept.

  --device NAME          cpu, cuda, cuda:1           (default: the first GPU)
  --memory-limit SIZE    such as 8GiB                (default: what is free)
  --json                 the result as JSON on stdout, and only that
  -h, --help

Exit status: 0 it keeps its promise, 4 it does not, 1 it cannot be verified
(plain training does not run, or time ran out), 2 a mistake that you can fix.
"""

_VERBS = ("methods", "hardware")

_LONGEST_LINE = 500

EXIT_OK = 0
EXIT_NO_ANSWER = 1
EXIT_USER_ERROR = 2
EXIT_DOES_NOT_FIT = 3
EXIT_NOT_KEPT = 4
EXIT_INTERRUPTED = 130


class _Parser(argparse.ArgumentParser):
    """An argument parser whose help is written by hand and whose errors say where help is."""

    def __init__(self, prog: str, help_text: str) -> None:
        super().__init__(prog=prog, allow_abbrev=False)
        self._help_text = help_text

    def format_help(self) -> str:
        return self._help_text

    def checked(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Parse them; argparse itself lets ``--option=--`` pass as a list of nothing."""
        options = self.parse_args(arguments)
        for name, value in vars(options).items():
            if isinstance(value, list):
                self.error(f"argument {name}: expected one argument")
        return options

    def error(self, message: str) -> NoReturn:
        _complain(_shortened(message))
        self.exit(EXIT_USER_ERROR, f"Try: {self.prog} --help\n")


def _parser() -> _Parser:
    parser = _Parser("momadvise", _HELP)
    parser.add_argument("model", metavar="MODEL", nargs="?")
    parser.add_argument("--goal", default="faster", choices=("faster", "bigger", "cheapest"))
    parser.add_argument("--device")
    parser.add_argument("--memory-limit")
    parser.add_argument("--global-batch", type=int)
    parser.add_argument("--gpus")
    parser.add_argument("--nnodes", type=int)
    parser.add_argument("--rdzv-endpoint")
    parser.add_argument("--node-rank", type=int)
    parser.add_argument("--price", type=float)
    parser.add_argument("--kwh-price", type=float)
    parser.add_argument("--max-latency")
    parser.add_argument("--max-cost", type=float)
    parser.add_argument("--deadline")
    parser.add_argument("--iterations", type=int)
    parser.add_argument("--min-throughput")
    parser.add_argument("--fidelity", choices=("exact", "rounding", "precision", "lossy", "model"))
    parser.add_argument("--search-space", default="default")
    parser.add_argument("--methods")
    parser.add_argument("--sampler", default="model", choices=("model", "tpe", "random"))
    parser.add_argument("--storage")
    parser.add_argument("--trials", type=int)
    parser.add_argument("--time-limit")
    parser.add_argument("--output")
    parser.add_argument("--timings", action="store_true")
    parser.add_argument("--json", action="store_true")
    return parser


def _predict_parser() -> _Parser:
    parser = _Parser("momadvise predict", _PREDICT_HELP)
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("--policy")
    parser.add_argument("--profile")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--device")
    parser.add_argument("--memory-limit")
    parser.add_argument("--json", action="store_true")
    return parser


def _verify_parser() -> _Parser:
    parser = _Parser("momadvise verify", _VERIFY_HELP)
    parser.add_argument("policy", metavar="POLICY")
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("--device")
    parser.add_argument("--memory-limit")
    parser.add_argument("--json", action="store_true")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: Command line without the program's name; ``sys.argv[1:]`` by default.

    Returns:
        Exit status: 0 answered, 1 no policy could be measured, 2 a mistake that the user can fix, 3 predicted not to
        fit, 4 a promise is not kept, 130 interrupted.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    with streams_kept() as streams:
        try:
            with interruptions_kept():
                status = _dispatch(arguments)
        except KeyboardInterrupt:
            print("momadvise: interrupted", file=sys.stderr)
            status = EXIT_INTERRUPTED
        except SystemExit as ended:  # the parser's
            status = ended.code if isinstance(ended.code, int) else EXIT_USER_ERROR
        sys.stdout.flush()
        if streams.lost is None:
            return status
        print(
            f"momadvise: error: what is printed must find room, but standard output: {streams.lost.strerror}. Make "
            "room and run the same command again: nothing that has finished is lost.",
            file=sys.stderr,
        )
        return EXIT_USER_ERROR


def _dispatch(arguments: list[str]) -> int:
    if not arguments:
        sys.stdout.write(_HELP)
        return EXIT_USER_ERROR
    if arguments[0] == "--version":
        from advisor import __version__

        print(f"momadvise {__version__}")
        return EXIT_OK
    if arguments[0] in _VERBS:
        return _catalogue(arguments)
    if arguments[0] == "predict":
        options, run = _predict_parser().checked(arguments[1:]), _predict
    elif arguments[0] == "verify":
        options, run = _verify_parser().checked(arguments[1:]), _verify
    else:
        options, run = _parser().checked(arguments), _advise
    from advisor.errors import MomadviseError, TrialError

    try:
        return run(options)
    except MomadviseError as error:
        status = EXIT_NO_ANSWER if isinstance(error, TrialError) else EXIT_USER_ERROR
        if options.json:
            from advisor.report.jsonout import json_error

            print(json_error(error))
        _print_error(error)
        return status
    except OSError as error:  # of a verb that has not named it itself
        from advisor.surroundings import refused

        _print_error(refused(error))
        return EXIT_USER_ERROR


def _advise(options: argparse.Namespace) -> int:
    if options.node_rank:
        return _follow(options)
    if options.model is None:
        _parser().error("a model is needed: a Python file, hf:TYPE or a config.json")
    return _tune(options)


def _tune(options: argparse.Namespace) -> int:
    from advisor.api import tune
    from advisor.report.console import SafeConsole
    from advisor.report.live import open_progress
    from advisor.session.request import DEFAULT_TRIALS

    answer = tune(
        options.model,
        goal=options.goal,
        device=options.device,
        memory_limit=options.memory_limit,
        fidelity=options.fidelity,
        search_space=options.search_space,
        methods=options.methods,
        sampler=options.sampler,
        storage=options.storage,
        trials=DEFAULT_TRIALS if options.trials is None else options.trials,
        time_limit=options.time_limit,
        global_batch=options.global_batch,
        gpus=options.gpus,
        nnodes=options.nnodes,
        rdzv_endpoint=options.rdzv_endpoint,
        price=options.price,
        kwh_price=options.kwh_price,
        max_latency=options.max_latency,
        max_cost=options.max_cost,
        deadline=options.deadline,
        iterations=options.iterations,
        min_throughput=options.min_throughput,
        output=options.output,
        progress=open_progress(SafeConsole(stderr=True)),
        wait=False,
    )
    if options.json:
        from advisor.report.jsonout import json_answer

        print(
            json_answer(
                answer.recommendation,
                workload=answer.workload,
                goal=answer.goal,
                hardware=answer.hardware,
                versions=answer.versions,
                files=answer.files,
                notes=answer.notes,
                timings=answer.timings,
            )
        )
    else:
        _print_answer(answer, with_timings=options.timings)
    return EXIT_OK if answer.complete else EXIT_INTERRUPTED


def _predict(options: argparse.Namespace) -> int:
    from rich.text import Text

    from advisor.report.console import SafeConsole
    from advisor.session.predict import PredictRequest, run_prediction
    from advisor.text.units import parse_bytes
    from advisor.workload.source import resolve_source

    request = PredictRequest(
        source=resolve_source(options.model),
        policy_file=None if options.policy is None else Path(options.policy),
        batch=options.batch,
        device=options.device,
        profile=options.profile,
        memory_limit_bytes=None if options.memory_limit is None else parse_bytes(options.memory_limit),
    )
    with SafeConsole(stderr=True).status("starting") as status:  # nothing is shown where stderr is no terminal
        outlook = run_prediction(request, lambda doing: status.update(Text(doing)))
    if options.json:
        from advisor.report.outlook_json import json_outlook

        print(json_outlook(outlook))
    else:
        from advisor.report.outlook_view import OutlookView

        _console().print(OutlookView(outlook), crop=False)
    return EXIT_OK if outlook.fits else EXIT_DOES_NOT_FIT


def _verify(options: argparse.Namespace) -> int:
    from rich.text import Text

    from advisor.report.console import SafeConsole
    from advisor.session.verify import VerifyRequest, run_verification
    from advisor.text.units import parse_bytes
    from advisor.workload.source import resolve_source

    request = VerifyRequest(
        policy_file=Path(options.policy),
        source=resolve_source(options.model),
        device=options.device,
        memory_limit_bytes=None if options.memory_limit is None else parse_bytes(options.memory_limit),
    )
    with SafeConsole(stderr=True).status("starting") as status:  # nothing is shown where stderr is no terminal
        found = run_verification(request, lambda doing: status.update(Text(doing)))
    if options.json:
        from advisor.report.verification_json import json_verification

        print(json_verification(found))
    else:
        from advisor.report.verification_view import VerificationView

        _console().print(VerificationView(found), crop=False)
    return EXIT_OK if found.kept else EXIT_NOT_KEPT


def _follow(options: argparse.Namespace) -> int:
    """Be one of the machines after the first: run a share of its trials until there are no more."""
    from advisor.errors import OptionError
    from advisor.session.setup.several_nodes import nodes_from
    from advisor.text.paths import path_of
    from advisor.text.printable import shown
    from advisor.trial.folder import StudyFolder, writing
    from advisor.trial.process.follower import follow

    nodes = nodes_from(options.nnodes, options.rdzv_endpoint, options.node_rank)
    log = StudyFolder(path_of(options.output or ".", "--output", OptionError)).follower_log(nodes.rank)
    with writing(log.parent):  # the command is the same on every machine, and the first one's folder may not be here
        log.parent.mkdir(parents=True, exist_ok=True)
    print(
        f"node {nodes.rank} of {nodes.count} follows {nodes.endpoint}; what its ranks print: {shown(log)}",
        file=sys.stderr,
    )
    follow(nodes, log)
    return EXIT_OK


def _print_answer(answer: Answer, *, with_timings: bool) -> None:
    from advisor.policy.wrapper import apply_lines, size_lines
    from advisor.report.answer import AnswerView

    notes = list(answer.notes)
    if answer.cached:
        notes.append(
            f"measured on {answer.date}; nothing has changed since, so nothing was run (--output elsewhere to)"
        )
    view = AnswerView(
        answer.recommendation,
        answer.goal,
        files={what: _as_seen_from_here(path) for what, path in answer.files.items()},
        apply_lines=(
            *size_lines(answer.recommendation.winner.model_size, answer.facts.size_arguments),
            *apply_lines(answer.policy, answer.facts.workload_options, answer.goal.machines),
        ),
        notes=notes,
    )
    _console().print(view, crop=False)
    if with_timings:
        from advisor.report.timings import TimingsTable

        _console().print(TimingsTable(answer.timings))


def _as_seen_from_here(path: Path) -> Path:
    """The path a person would type: relative where it lies below the current folder."""
    try:
        here = Path.cwd()
    except OSError:  # deleted
        return path
    return path.relative_to(here) if path.is_relative_to(here) else path


def _catalogue(arguments: list[str]) -> int:
    from advisor.errors import MomadviseError

    verb, *names = arguments
    if any(name.startswith("-") for name in names) or len(names) > (1 if verb == "methods" else 0):
        if names in (["-h"], ["--help"]):
            sys.stdout.write(_HELP)
            return EXIT_OK
        print(f"momadvise: error: usage: momadvise {verb}{' [NAME]' if verb == 'methods' else ''}", file=sys.stderr)
        return EXIT_USER_ERROR
    try:
        if verb == "hardware":
            _print_hardware()
        else:
            _print_methods(names[0] if names else None)
    except MomadviseError as error:
        _print_error(error)
        return EXIT_USER_ERROR
    return EXIT_OK


def _print_hardware() -> None:
    from advisor.hardware.detect import choose_device, list_devices
    from advisor.hardware.profiles import load_profiles
    from advisor.report.catalogue_view import hardware_view

    console = _console()
    profiles = load_profiles()
    for hardware in list_devices():
        console.print(hardware_view(hardware, profiles.get(hardware.profile or "")))
    chosen = choose_device()
    console.print(f"Without --device: {chosen.device} ({chosen.reason}).")


def _print_methods(name: str | None) -> None:
    from advisor.hardware.detect import detect_hardware
    from advisor.methods.catalogue import CATALOGUE, get_method
    from advisor.report.catalogue_view import method_view, methods_view

    hardware = detect_hardware()
    view = methods_view(CATALOGUE, hardware) if name is None else method_view(get_method(name), hardware)
    _console().print(view)


def _console() -> Console:
    """A console on stdout."""
    from advisor.report.console import SafeConsole

    return SafeConsole()


def _print_error(error: BaseException) -> None:
    traceback_text = getattr(error, "traceback_text", None)
    if traceback_text:
        print(printable(traceback_text.rstrip()), file=sys.stderr)
    _complain(str(error))


def _complain(message: str) -> None:
    print(f"momadvise: error: {printable(message)}", file=sys.stderr)


def _shortened(message: str) -> str:
    """What argparse says, with whatever was typed in it, on one line that nobody has to scroll."""
    line = " ".join(message.splitlines())
    return line if len(line) <= _LONGEST_LINE else f"{line[: _LONGEST_LINE - 100]}...{line[-97:]}"


if __name__ == "__main__":
    sys.exit(main())
