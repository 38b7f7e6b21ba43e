"""``momadvise report``: one page of finished studies."""

from __future__ import annotations

import argparse
from pathlib import Path

from advisor.command_line import complain, report_parser

__all__ = ["report"]

_LONGEST_PATH = 4096


def report(options: argparse.Namespace) -> int:
    """Write it; returns the exit status."""
    from advisor.errors import OptionError
    from advisor.report.page.studies import refuse_folder_of_studies
    from advisor.report.page.writing import write_report
    from advisor.text.paths import path_of
    from advisor.text.printable import shown

    if not options.dir:
        refuse_folder_of_studies(Path())
        report_parser().error("the following arguments are required: DIR")
    output = None if options.output is None else path_of(options.output, "--output", OptionError)
    page = write_report([path_of(folder, "DIR", OptionError) for folder in options.dir], output)
    print(f"written: {shown(page, _LONGEST_PATH)}")
    if options.open:
        _open(page)
    return 0


def _open(page: Path) -> None:
    import webbrowser

    if not webbrowser.open(page.absolute().as_uri()):
        complain(f"no browser could be started here. Open {page} yourself")
