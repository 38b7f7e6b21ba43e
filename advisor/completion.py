"""``momadvise completion bash|zsh|fish``: a script that completes commands, options and their values.

The scripts are made from the table of options, and run nothing of momadvise while somebody types.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple

from advisor.command_line import (
    EXIT_USER_ERROR,
    Parser,
    check_parser,
    complain,
    export_parser,
    predict_parser,
    report_parser,
    tune_parser,
    verify_parser,
)
from advisor.options import Option
from advisor.text.printable import quoted

__all__ = ["SHELLS", "VERBS", "completion", "script"]

SHELLS = ("bash", "zsh", "fish")
_FILES = ("path", "policy")
_FISH_LIST = "(commandline -ct | string replace -r '^--[^=]*=' '' | string replace -r '[^,]*$' '')"

_WHERE = """\
For bash, in ~/.bashrc:
  source <(momadvise completion bash)
For zsh, after compinit in ~/.zshrc:
  source <(momadvise completion zsh)
For fish, in ~/.config/fish/config.fish:
  momadvise completion fish | source
"""


class Verb(NamedTuple):
    """A command.

    Attributes:
        about: What it is for, in a few words.
        parser: Makes its parser; ``None`` if it has no table of options.
    """

    about: str
    parser: Callable[[], Parser] | None = None


VERBS = {
    "predict": Verb("without running a model: will it fit?", predict_parser),
    "verify": Verb("does a policy.yaml keep its promise?", verify_parser),
    "check": Verb("is a policy.yaml still right here?", check_parser),
    "export": Verb("a policy as the settings of a trainer", export_parser),
    "report": Verb("a page with pictures of finished studies", report_parser),
    "methods": Verb("the methods, and whether they apply here"),
    "hardware": Verb("the devices here, and their rates"),
    "completion": Verb("a script for the completion of a shell"),
}


def completion(*arguments: str) -> int:
    """Print the script of a shell; returns the exit status."""
    if len(arguments) != 1 or arguments[0] not in SHELLS:
        if arguments in (("-h",), ("--help",)):
            print(f"usage: momadvise completion {'|'.join(SHELLS)}\n\n{_WHERE}", end="")
            return 0
        got = quoted(" ".join(arguments)) if arguments else "none"
        complain(
            f"momadvise completion needs the name of a shell, {', '.join(SHELLS[:-1])} or {SHELLS[-1]}, but got {got}."
        )
        print("Try: momadvise completion --help", file=sys.stderr)
        return EXIT_USER_ERROR
    sys.stdout.write(script(arguments[0]))
    return 0


def script(shell: str) -> str:
    """The script that completes ``momadvise`` in a shell."""
    return {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell]()


def _words(verb: str) -> tuple[str, ...]:
    """What may follow a verb that has no table of options."""
    if verb == "methods":
        from advisor.methods.catalogue import CATALOGUE

        return tuple(method.name for method in CATALOGUE)
    return {"hardware": ("-v", "--verbose"), "completion": SHELLS}[verb]


def _options(verb: str) -> tuple[Option, ...]:
    parser = VERBS[verb].parser if verb else tune_parser
    return () if parser is None else parser().options


def _values(option: Option) -> tuple[str, ...]:
    """The values of an option that can be listed."""
    if option.choices:
        return option.choices
    if option.flag == "--profile":
        from advisor.hardware.profiles import load_profiles

        return tuple(sorted(load_profiles()))
    named = {"--search-space": ("default", "all", "exact", "smoke"), "--device": ("cpu", "cuda")}
    return _words("methods") if option.kind == "names" else named.get(option.flag, ())


def _flags(option: Option) -> list[str]:
    return [name for name in (option.short, option.flag) if name]


def _bash() -> str:
    return f"""\
# Completion of momadvise for bash, to be sourced.
_momadvise() {{
  local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD - 1]}} verb=${{COMP_WORDS[1]}} words=
  COMPREPLY=()
  if [[ $cur == = ]]; then cur=; elif [[ $prev == = ]]; then prev=${{COMP_WORDS[COMP_CWORD - 2]}}; fi
  case $verb in {"|".join(VERBS)}) ;; *) verb= ;; esac
  [[ $verb && $COMP_CWORD == 1 ]] && verb=
  case $verb:$prev in
{"".join(_bash_values())}\
  esac
  if [[ $cur == -* ]]; then
    case $verb in
{"".join(_bash_flags())}\
    esac
  else
    case $verb in
{"".join(f"      {verb}) words={_quoted(_words(verb))} ;;{chr(10)}" for verb in VERBS if VERBS[verb].parser is None)}\
    esac
    [[ $COMP_CWORD == 1 ]] && words={_quoted(tuple(VERBS))}
  fi
  [[ $words ]] && COMPREPLY=($(compgen -W "$words" -- "$cur"))
  if [[ $COMP_CWORD == 1 && $cur != -* ]]; then
    compopt -o filenames 2>/dev/null
    local file
    while IFS= read -r file; do COMPREPLY+=("$file"); done < <(compgen -f -- "$cur")
  fi
}}
complete -o default -F _momadvise momadvise
"""


def _bash_values() -> Iterator[str]:
    """Where the word before is an option with a value: its values, or nothing, which leaves files to bash."""
    free = []
    for verb in ("", *VERBS):
        for option in _options(verb):
            place = f"{verb}:{option.flag}"
            if _values(option):
                # A list goes on after its last comma.
                typed, before = (
                    ('"${cur##*,}"', ' -P "${cur%"${cur##*,}"}"') if option.kind == "names" else ('"$cur"', "")
                )
                words = _quoted(_values(option))
                yield f"    {place}) COMPREPLY=($(compgen{before} -W {words} -- {typed})); return ;;\n"
            elif option.kind != "switch" and not option.bare:
                free.append(place)
    yield f"    {'|'.join(free)}) return ;;\n"


def _bash_flags() -> Iterator[str]:
    for verb in ("", *VERBS):
        flags = tuple(flag for option in _options(verb) for flag in _flags(option)) or (
            _words(verb) if verb == "hardware" else ()
        )
        more = ("--version",) if not verb else ()
        yield f"      {verb or chr(39) * 2}) words={_quoted((*flags, '--help', *more))} ;;\n"


def _quoted(words: tuple[str, ...]) -> str:
    return f"'{' '.join(words)}'"


def _zsh() -> str:
    verbs = "\n".join(f"    {_in_quotes(f'{name}:{verb.about}')}" for name, verb in VERBS.items())
    cases = "".join(f"    {verb})\n{_zsh_arguments(verb)}      ;;\n" for verb in VERBS)
    return f"""\
#compdef momadvise
# Completion of momadvise for zsh, to be sourced after compinit, or a file _momadvise in fpath.
_momadvise() {{
  local -a verbs=(
{verbs}
  )
  if (( CURRENT == 2 )) && [[ $words[2] != -* ]]; then
    _describe -t commands command verbs
    _files
    return
  fi
  case $words[2] in
{cases}\
    *)
{_zsh_arguments("")}\
      ;;
  esac
}}
if [[ $funcstack[1] == _momadvise ]]; then _momadvise "$@"; else compdef _momadvise momadvise; fi
"""


def _zsh_arguments(verb: str) -> str:
    if verb and VERBS[verb].parser is None:
        return f"      compadd -- {' '.join(_words(verb))}\n"
    start = "      shift words; (( CURRENT-- ))\n" if verb else ""
    lines = []
    for option in _options(verb):
        about = option.meaning.replace("[", "(").replace("]", ")").replace(":", ";")
        value = ""
        if option.kind != "switch":
            listed = f"({' '.join(_values(option))})" if _values(option) else "_files" if option.kind in _FILES else " "
            if option.kind == "names":
                listed = f"_values -s , name {' '.join(_values(option))}"
            value = f":{option.value.replace(':', ';')}:{listed}"
        equals = "" if option.kind == "switch" else "=-" if option.bare else "="
        lines += [_in_quotes(f"{flag}{equals}[{about}]{':' if option.bare else ''}{value}") for flag in _flags(option)]
    own = [*lines, "'(- *)'{-h,--help}'[all options]'", "'*:file:_files'"]
    return f"{start}      _arguments \\\n        " + " \\\n        ".join(own) + "\n"


def _fish() -> str:
    names = " ".join(VERBS)
    first = "__fish_use_subcommand"
    lines = ["# Completion of momadvise for fish."]
    lines += [f"complete -c momadvise -n {first} -a {name} -d {_in_quotes(verb.about)}" for name, verb in VERBS.items()]
    for verb in ("", *VERBS):
        condition = f"__fish_seen_subcommand_from {verb}" if verb else f"not __fish_seen_subcommand_from {names}"
        start = f"complete -c momadvise -n {_in_quotes(condition)}"
        if verb and VERBS[verb].parser is None:
            lines.append(f"{start} -f -a {_in_quotes(' '.join(_words(verb)))}")
            continue
        for option in _options(verb):
            short = f" -s {option.short.removeprefix('-')}" if option.short else ""
            value = "" if option.kind == "switch" or option.bare else " -r" if option.kind in _FILES else " -x"
            words = " ".join(_values(option))
            if option.kind == "names":  # a list goes on after its last comma
                words = f"{_FISH_LIST}{{{words.replace(' ', ',')}}}"
            listed = f" -a {_in_quotes(words)}" if words else ""
            flag = option.flag.removeprefix("--")
            lines.append(f"{start}{short} -l {flag}{value}{listed} -d {_in_quotes(option.meaning)}")
        lines.append(f"{start} -s h -l help -d 'all options'")
    return "\n".join(lines) + "\n"


def _in_quotes(text: str) -> str:
    """One word of either shell, whatever is in it."""
    return "'" + text.replace("'", "'\\''") + "'"
