"""``momadvise methods`` and ``momadvise hardware``: what there is, and what of it applies here."""

from __future__ import annotations

import sys

from advisor.command_line import EXIT_USER_ERROR, complain, laid_out
from advisor.text.printable import quoted

__all__ = ["catalogue"]

_HELP = {
    "methods": """\
usage: momadvise methods [NAME]

Every method of the catalogue, what it does, and whether it applies to this
machine. With NAME, one of them: what it saves and costs, when to use it, its
parameters, and where it is from.

Exit status: 0 listed, 2 a mistake that you can fix.
""",
    "hardware": """\
usage: momadvise hardware [-v]

The devices here, their memory, the published rates that predictions and prices
begin with, and which device is used without --device.

  -v, --verbose            what each published figure is of, and its source
  -h, --help

Exit status: 0 listed, 2 a mistake that you can fix.
""",
}


def catalogue(verb: str, *names: str) -> int:
    """Print them; returns the exit status."""
    verbose = verb == "hardware" and names in (("-v",), ("--verbose",))
    names = () if verbose else names
    if any(name.startswith("-") for name in names) or len(names) > (1 if verb == "methods" else 0):
        if names in (("-h",), ("--help",)):
            sys.stdout.write(laid_out(_HELP[verb]))
            return 0
        usage = f"usage: momadvise {verb}{' [NAME]' if verb == 'methods' else ' [-v]'}"
        complain(f"momadvise {verb} does not take {quoted(' '.join(names))}; {usage}")
        return EXIT_USER_ERROR
    from advisor.hardware.detect import choose_device, detect_hardware, list_devices
    from advisor.hardware.profiles import load_profiles
    from advisor.methods.catalogue import CATALOGUE, get_method
    from advisor.report.catalogue_view import hardware_summary, hardware_view, method_view, methods_view
    from advisor.report.console import SafeConsole

    console = SafeConsole()
    if verb == "methods":
        here = detect_hardware()
        console.print(method_view(get_method(names[0]), here) if names else methods_view(CATALOGUE, here), crop=False)
        return 0
    profiles, devices = load_profiles(), list_devices()
    for hardware in devices if verbose else ():
        console.print(hardware_view(hardware, profiles.get(hardware.profile or "")), crop=False)
    if not verbose:
        console.print(hardware_summary(devices, profiles))
    chosen = choose_device()
    console.print(f"Without --device: {chosen.device} ({chosen.reason}).")
    return 0
