"""``momadvise export``: a policy as the configuration of a trainer."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from advisor.command_line import export_parser

if TYPE_CHECKING:
    import argparse

__all__ = ["export"]

EXIT_NOT_EXPORTED = 3


def export(options: argparse.Namespace) -> int:
    """Write a policy as a trainer's configuration; returns the exit status."""
    from advisor.errors import OptionError
    from advisor.exports.config_file import new_configuration, patched_file
    from advisor.exports.export import export_policy
    from advisor.exports.installed_keys import absent_keys
    from advisor.exports.trainers import TARGETS, get_target
    from advisor.policy.file import load_policy_file
    from advisor.report.console import SafeConsole
    from advisor.report.export_view import export_view
    from advisor.report.json_documents import json_export
    from advisor.text.paths import path_of

    if options.to is None:
        export_parser().error(f"--to is needed: one of {', '.join(one.name for one in TARGETS)}")
    exported = export_policy(
        load_policy_file(options.policy), get_target(options.to), max_grad_norm=options.max_grad_norm
    )
    patched = None if options.into is None else patched_file(path_of(options.into, "--into", OptionError), exported)
    applied = exported.complete and not absent_keys(exported.keys, exported.target)
    written = applied or not options.strict
    if patched is not None and written:
        patched.write()
    if options.json:
        print(json_export(exported, patched, written=written))
    else:
        SafeConsole(stderr=True).print(export_view(exported, patched, written=written), crop=False)
        if patched is None and written:
            sys.stdout.write(new_configuration(exported))
    return 0 if written else EXIT_NOT_EXPORTED
