"""The command. Each verb imports what it needs when it runs, so that ``momadvise --help`` starts at once."""

from __future__ import annotations

import difflib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from advisor.cli_catalogue import catalogue
from advisor.cli_export import export
from advisor.cli_report import report
from advisor.command_line import (
    EXIT_USER_ERROR,
    NEXT,
    Parser,
    check_parser,
    complain,
    export_parser,
    predict_parser,
    report_parser,
    tune_parser,
    verify_parser,
)
from advisor.options import CHECK, GOAL, TUNE, options_of
from advisor.report.streams import streams_kept
from advisor.text.printable import printable, quoted
from advisor.trial.process.interruption import interruptions_kept

if TYPE_CHECKING:
    import argparse

    from rich.console import RenderableType

    from advisor.decide.answer import Answer

__all__ = ["main"]

_Request = TypeVar("_Request")
_Result = TypeVar("_Result")

EXIT_OK = 0
EXIT_NO_ANSWER = 1
EXIT_DOES_NOT_FIT = 3
EXIT_STALE = 3
EXIT_NOT_KEPT = 4
EXIT_MOVED = 4
EXIT_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: Command line without the program's name; ``sys.argv[1:]`` by default.

    Returns:
        Exit status: 0 answered, 1 no policy could be measured, 2 a mistake that the user can fix, 3 predicted not to
        fit, not wholly exported, or stale, 4 a promise is not kept, or its figures moved, 130 interrupted.
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
            f"momadvise: error: standard output must be writable, but writing failed: {streams.lost.strerror}. Fix "
            "that and run the same command again: finished trials are kept.",
            file=sys.stderr,
        )
        return EXIT_USER_ERROR


def _dispatch(arguments: list[str]) -> int:
    if not arguments:
        sys.stdout.write(NEXT)
        return EXIT_USER_ERROR
    if arguments[0] == "--version":
        from advisor import __version__

        print(f"momadvise {__version__}")
        return EXIT_OK
    if arguments[0] == "completion":
        from advisor.completion import completion

        return completion(*arguments[1:])
    from advisor.errors import MomadviseError, TrialError

    try:
        return _run(*arguments)
    except MomadviseError as error:
        if "--json" in arguments:
            from advisor.report.json_documents import json_error

            print(json_error(error))
        _print_error(error)
        return EXIT_NO_ANSWER if isinstance(error, TrialError) else EXIT_USER_ERROR
    except OSError as error:  # not handled by the verb itself
        from advisor.surroundings import refused

        _print_error(refused(error))
        return EXIT_USER_ERROR


def _run(*arguments: str) -> int:
    """Run a verb, or the search, which has none."""
    verb = arguments[0]
    if verb in ("methods", "hardware"):
        return catalogue(*arguments)
    if verb in _VERBS:
        parser, run = _VERBS[verb]
        return run(parser().checked(arguments[1:]))
    if meant := _misspelled(verb):
        complain(f"There is no command and no model {quoted(verb)}. Did you mean momadvise {meant}?")
        return EXIT_USER_ERROR
    return _advise(tune_parser().checked(arguments))


def _advise(options: argparse.Namespace) -> int:
    if options.node_rank:
        return _follow(options)
    if options.model is None and options.from_ is None:
        tune_parser().error("a model is needed: a Python file, hf:TYPE, hf:ORG/NAME or a config.json")
    return _tune(options)


def _check(options: argparse.Namespace) -> int:
    from rich.text import Text

    from advisor.api import check
    from advisor.decide.policy_status import PolicyStatus
    from advisor.report.check_view import check_view
    from advisor.report.console import SafeConsole
    from advisor.report.json_documents import json_check
    from advisor.report.summary import add_summary, check_summary

    status_of = {PolicyStatus.HOLDS: EXIT_OK, PolicyStatus.STALE: EXIT_STALE, PolicyStatus.MOVED: EXIT_MOVED}
    summary = _summary(options)
    with SafeConsole(stderr=True).status("comparing") as status:
        found = check(
            options.policy,
            options.model,
            **{one.keyword: getattr(options, one.keyword) for one in options_of(*CHECK) if one.in_library},
            tell=lambda doing: status.update(Text(doing)),
        )
    _print(options, lambda: json_check(found), check_view(found))
    if summary is not None:
        add_summary(check_summary(found), summary)
    return status_of.get(found.status, EXIT_NO_ANSWER)


def _summary(options: argparse.Namespace) -> Path | None:
    """The file of ``--summary``, checked before anything is measured."""
    if options.summary is None:
        return None
    from advisor.errors import OptionError
    from advisor.text.paths import path_of
    from advisor.text.printable import shown

    path = path_of(options.summary, "--summary", OptionError)
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise OptionError(f"--summary must be a file in an existing folder, but got {shown(path)}. Name another one.")
    return path


def _tune(options: argparse.Namespace) -> int:
    from advisor.api import tune
    from advisor.report.console import SafeConsole
    from advisor.report.json_documents import json_answer
    from advisor.report.live import open_progress
    from advisor.report.summary import add_summary, answer_summary

    summary = _summary(options)
    answer = tune(
        options.model,
        **{one.keyword: getattr(options, one.keyword) for one in (GOAL, *options_of(*TUNE)) if one.in_library},
        progress=open_progress(SafeConsole(stderr=True)),
        wait=False,
    )
    _print(options, lambda: json_answer(answer), _answer_view(answer, options))
    if summary is not None:
        add_summary(answer_summary(answer), summary)
    return EXIT_OK if answer.complete else EXIT_INTERRUPTED


def _predict(options: argparse.Namespace) -> int:
    from advisor.report.json_documents import json_outlook
    from advisor.report.outlook_view import OutlookView
    from advisor.session.predict import PredictRequest, run_prediction

    request = PredictRequest(
        policy_file=None if options.policy is None else Path(options.policy),
        batch=options.batch,
        profile=options.profile,
        **_shared(options),
    )
    outlook = _with_status(run_prediction, request)
    _print(options, lambda: json_outlook(outlook), OutlookView(outlook))
    return EXIT_OK if outlook.fits else EXIT_DOES_NOT_FIT


def _verify(options: argparse.Namespace) -> int:
    from advisor.report.json_documents import json_verification
    from advisor.report.verification_view import verification_view
    from advisor.session.verify import VerifyRequest, run_verification

    found = _with_status(run_verification, VerifyRequest(policy_file=Path(options.policy), **_shared(options)))
    _print(options, lambda: json_verification(found), verification_view(found))
    return EXIT_OK if found.kept else EXIT_NOT_KEPT


def _shared(options: argparse.Namespace) -> dict[str, Any]:
    """What a request of either kind has."""
    from advisor.text.ranges import whole
    from advisor.text.units import parse_bytes
    from advisor.workload.source import resolve_source
    from advisor.workload.workload import Stated

    limit = options.memory_limit
    given = {"tokens": options.tokens, "image_size": options.image_size}
    sizes = {name: whole(one, f"--{name.replace('_', '-')}") for name, one in given.items() if one is not None}
    return {
        "source": resolve_source(options.model),
        "stated": Stated(**sizes),
        "device": options.device,
        "memory_limit_bytes": None if limit is None else parse_bytes(limit),
    }


def _with_status(run: Callable[[_Request, Callable[[str], None]], _Result], request: _Request) -> _Result:
    """Run it, and show progress if stderr is a terminal."""
    from rich.text import Text

    from advisor.report.console import SafeConsole

    with SafeConsole(stderr=True).status("starting") as status:
        return run(request, lambda doing: status.update(Text(doing)))


def _print(options: argparse.Namespace, document: Callable[[], str], view: RenderableType) -> None:
    from advisor.report.console import SafeConsole

    if options.json:
        print(document())
    else:
        SafeConsole().print(view, crop=False)


def _follow(options: argparse.Namespace) -> int:
    """Run as a machine after the first: run its share of trials until there are no more."""
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
        f"node {nodes.rank} of {nodes.count} follows {nodes.endpoint}; its ranks log to {shown(log)}",
        file=sys.stderr,
    )
    follow(nodes, log)
    return EXIT_OK


def _answer_view(answer: Answer, options: argparse.Namespace) -> RenderableType:
    from rich.console import Group

    from advisor.policy.wrapper import apply_lines, size_lines
    from advisor.report.answer import AnswerView, timings_table
    from advisor.text.paths import as_seen_from_here

    notes = list(answer.notes)
    if answer.cached:
        notes.append(
            f"measured on {answer.date} and reused: nothing has changed since (to measure again, give another --output)"
        )
    view = AnswerView(
        answer.recommendation,
        answer.goal,
        files={what: as_seen_from_here(path) for what, path in answer.files.items()},
        apply_lines=(
            *size_lines(answer.recommendation.winner.model_size, answer.facts.size_arguments),
            *apply_lines(answer.policy, answer.facts.workload_options, answer.goal.machines),
        ),
        notes=notes,
        verbose=options.verbose,
    )
    return Group(view, timings_table(answer.timings)) if options.timings else view


def _misspelled(word: str) -> str:
    """The command that a word nearly names; empty if it may be a model, or is near to none."""
    if not word.isalpha() or Path(word).exists() or importlib.util.find_spec(word) is not None:
        return ""
    from advisor.completion import VERBS

    meant = difflib.get_close_matches(word, (*VERBS, "help", "version"), n=1, cutoff=0.75)
    return next((f"--{one}" if one not in VERBS else one for one in meant), "")


def _print_error(error: BaseException) -> None:
    traceback_text = getattr(error, "traceback_text", None)
    if traceback_text:
        print(printable(traceback_text.rstrip()), file=sys.stderr)
    complain(str(error))


_VERBS: dict[str, tuple[Callable[[], Parser], Callable[[argparse.Namespace], int]]] = {
    "predict": (predict_parser, _predict),
    "verify": (verify_parser, _verify),
    "export": (export_parser, export),
    "check": (check_parser, _check),
    "report": (report_parser, report),
}
"""Verb -> how its arguments are read, and what is done then."""


if __name__ == "__main__":
    sys.exit(main())
