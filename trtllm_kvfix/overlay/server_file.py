"""The server's YAML file on disk. Upstream hands over only the parsed content, which shows neither the file's name nor
a key that is there twice."""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import yaml

from trtllm_kvfix.errors import SettingsError
from trtllm_kvfix.settings import repeated_keys


def file_of(document: Any, named: Iterable[Any]) -> Path | None:
    """The file with this content among those that the command line or `named` names."""
    for file in _files([*named, *sys.argv[1:]]):
        try:
            if yaml.safe_load(file.read_text(encoding="utf-8")) == document:
                return file
        except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError):
            continue
    return None


def refuse_repeated(file: Path) -> None:
    """Refuse keys that are there twice: the last would win, and the others would be ignored silently."""
    twice = repeated_keys(file.read_text(encoding="utf-8"))
    if twice:
        raise SettingsError(f"{file} has {', '.join(twice)} more than once; only the last would count")


def end(error: SettingsError) -> NoReturn:
    """In a command of the server, end it with the error in one line; elsewhere, raise."""
    click = sys.modules.get("click")
    if click is None or click.get_current_context(silent=True) is None:
        raise error
    shown = click.ClickException(str(error))
    shown.exit_code = error.exit_code
    raise shown from None


def _files(arguments: Iterable[Any]) -> Iterator[Path]:
    for argument in arguments:
        text = argument.rpartition("=")[2] if isinstance(argument, str) else ""
        if text.endswith((".yaml", ".yml")) and Path(text).is_file():
            yield Path(text)
