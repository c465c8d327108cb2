"""Commands whose Python the hook of `run` does not reach, because it does not read PYTHONPATH, or not ours.

What a command's own words and the first lines of its scripts say is certain. What a shell script does is not, since it
may do so for another program than the server.
"""

import re
import shlex
import shutil
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from trtllm_kvfix.foreign_files import opened

PATH = "PYTHONPATH"
BOOTSTRAP = Path(__file__).parent / "bootstrap"
# Flags that make Python ignore PYTHONPATH or `sitecustomize`, as letters and as they may be bundled ("-Im").
DEAF_FLAGS = "IES"
FLAGS_WITH_VALUE = "WX"
SHELLS = ("sh", "bash", "dash", "zsh", "ksh", "ash")
READS = (".", "source")
SHEBANG_BYTES_MAX = 256  # as the kernel reads
SCRIPT_BYTES_MAX = 1 << 16
SCRIPTS_MAX = 16  # a script may call itself
# The second line of a script whose interpreter's path is too long for the first: pip writes it.
EXEC_LINE = "'''exec' "


class Deaf(NamedTuple):
    what: str  # as the command has it, such as `env -i`
    why: str
    remedy: str
    has_no_site: bool = False  # so not even the persistent hook reaches it


def first_deaf(command: Sequence[str]) -> Deaf | None:
    """The first part of the command that keeps the hook out: of the command itself, behind a launcher such as mpirun,
    in a shell's text, or in the first line of a script."""
    for at, word in enumerate(command):
        rest, name = command[at + 1 :], Path(word).name
        if is_python(word):
            flag = deaf_flag([word, *rest])
            return _by_flag(f"{word} {flag}", flag) if flag else None  # what follows is its script's
        found = None
        if _drops_hook(word):
            found = _takes_away(word)
        elif name == "env":
            found = next(_of_env(rest), None)
        elif name == "unset" and PATH in rest:
            found = _takes_away(f"unset {PATH}")
        elif name in SHELLS:
            text = shell_text(rest)
            if text is not None:
                return next(filter(None, (first_deaf(words) for _, words in _commands_of(text))), None)
        if found is None:
            interpreter = interpreter_line(word)
            flag = deaf_flag(interpreter)
            found = _by_flag(f"the Python of {word} ({flag})", flag) if flag else None
        if found is not None:
            return found
    return None


def doubts(command: Sequence[str]) -> Iterator[str]:
    """Lines that may keep the hook out, of shell scripts in the command and of those that these call or read."""
    scripts = list(_shell_scripts(command))
    for file in scripts:  # it grows
        for line, words in _commands_of(_beginning(file, SCRIPT_BYTES_MAX)):
            deaf = first_deaf(words)
            if deaf is not None:
                yield f"{file}, line {line}: {deaf.what} {deaf.why}"
            scripts += [each for each in _shell_scripts(words) if each not in scripts and len(scripts) < SCRIPTS_MAX]


def deaf_flag(command: Sequence[str]) -> str | None:
    """The first flag of `python ...` that keeps it from reading PYTHONPATH or `sitecustomize`."""
    if not command or not is_python(command[0]):
        return None
    arguments = iter(command[1:])
    for argument in arguments:
        if not argument.startswith("-") or argument in ("-", "-m", "-c", "--"):
            return None
        letters = argument[1:] if not argument.startswith("--") else ""
        own = next((at for at, letter in enumerate(letters) if letter in FLAGS_WITH_VALUE + "mc"), len(letters))
        if set(letters[:own]) & set(DEAF_FLAGS):
            return argument
        if letters[own:] and letters[own] in "mc":
            return None
        if letters[own:] in FLAGS_WITH_VALUE and letters[own:]:
            next(arguments, None)  # its value stands apart
    return None


def is_python(word: str) -> bool:
    return re.fullmatch(r"python[\d.]*t?", Path(word).name) is not None


def interpreter_line(program: str) -> list[str]:
    """The interpreter that a script's first lines name; nothing where it is not a script."""
    first, _, more = _beginning(shutil.which(program), 4 * SHEBANG_BYTES_MAX).partition("\n")
    if not first.startswith("#!"):
        return []
    if more.startswith(EXEC_LINE):
        return _words(more.partition("\n")[0].removeprefix(EXEC_LINE))
    words = _words(first[2:SHEBANG_BYTES_MAX])
    if words and Path(words[0]).name == "env":
        # After -S, one word may have all others in it.
        words = [part for word in words[1:] if word != "-S" for part in _words(word.removeprefix("-S"))]
        words = words[next((at for at, word in enumerate(words) if is_python(word)), 0) :]
    return words


def shell_text(arguments: Sequence[str]) -> str | None:
    """What `sh ... -c TEXT` runs; None: it runs a file, or reads."""
    given = iter(arguments)
    for word in given:
        if word[:1] not in ("-", "+") or word in ("-", "--"):
            return None
        if "c" in word[1:] and not word.startswith("--"):
            return next(given, None)
        if word[-1] in "oO" and not word.startswith("--"):
            next(given, None)  # the name of the option, as in `-eo pipefail`
    return None


def _of_env(arguments: Sequence[str]) -> Iterator[Deaf]:
    given = iter(arguments)
    for word in given:
        name, _, value = word.partition("=")
        if word in ("-", "--ignore-environment"):
            yield _takes_away(f"env {word}")
        elif name == "--unset":
            yield from _of_unset(value or next(given, ""))
        elif name == "--split-string":
            yield from _of_split(value or next(given, ""), given)
        elif word.startswith("-") and not word.startswith("--"):
            letters, letter, value = (*re.split("([uSC])", word[1:], maxsplit=1), "", "")[:3]
            if "i" in letters:
                yield _takes_away(f"env {word}")
            value = value or (next(given, "") if letter else "")
            if letter == "u":
                yield from _of_unset(value)
            elif letter == "S":
                yield from _of_split(value, given)
        elif _drops_hook(word):
            yield _takes_away(f"env {word}")
        elif not word.startswith("-") and "=" not in word:
            return  # its command, at which the caller looks


def _of_unset(name: str) -> Iterator[Deaf]:
    if name == PATH:
        yield _takes_away(f"env -u {PATH}")


def _of_split(text: str, rest: Iterator[str]) -> Iterator[Deaf]:
    found = first_deaf(["env", *_words(text), *rest])
    if found is not None:
        yield found


def _commands_of(text: str) -> Iterator[tuple[int, list[str]]]:
    """The commands in a shell's text, with their lines."""
    for number, line in enumerate(text.replace("\\\n", "  ").splitlines(), start=1):
        if not line.lstrip().startswith("#"):
            for is_end, words in groupby(_words(line, punctuation=True), lambda word: set(word) <= set(";|&()")):
                if not is_end:
                    yield number, list(words)


def _shell_scripts(command: Sequence[str]) -> Iterator[str]:
    for at, word in enumerate(command):
        if is_python(word):
            return
        name, before = Path(word).name, Path(command[at - 1]).name if at else ""
        text = shell_text(command[at + 1 :]) if name in SHELLS else None
        if text is not None:
            yield from (file for _, words in _commands_of(text) for file in _shell_scripts(words))
            return
        if before in (*SHELLS, *READS) or _is_shell_script(word):
            yield shutil.which(word) or word


def _drops_hook(word: str) -> bool:
    """An assignment, in which a shell may keep what is there."""
    name, equals, value = word.partition("=")
    return bool(equals) and name == PATH and not re.search(rf"\$\{{?{PATH}\b", value) and str(BOOTSTRAP) not in value


def _takes_away(what: str) -> Deaf:
    return Deaf(
        f"`{what}`",
        f"takes away {PATH}, through which `run` brings the fixes",
        f"set variables in front of `trtllm-kvfix run`, keep what is there (`{PATH}=...:${PATH}` in a shell)",
    )


def _by_flag(what: str, flag: str) -> Deaf:
    if "S" in flag:
        return Deaf(what, "reads no site-packages, where the hook would be", "leave the flag out", has_no_site=True)
    return Deaf(what, f"ignores {PATH}, through which `run` brings the fixes", "leave the flag out")


def _is_shell_script(word: str) -> bool:
    return any(Path(each).name in SHELLS for each in interpreter_line(word)[:2])


def _words(text: str, *, punctuation: bool = False) -> list[str]:
    lexer = shlex.shlex(text, posix=True, punctuation_chars=";|&()" if punctuation else False)
    lexer.whitespace_split, lexer.commenters = True, ""
    try:
        return list(lexer)
    except ValueError:
        return text.split()  # a quotation mark without its other: of a text that goes on


def _beginning(file: str | None, bytes_max: int) -> str:
    try:
        with opened(Path(file or "")) as stream:
            return stream.read(bytes_max).decode(errors="replace")
    except (OSError, ValueError):
        return ""  # not there, or not to be read: the command will say so
