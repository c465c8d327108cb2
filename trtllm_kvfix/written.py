"""Files that a command writes after it has shown its results: a report that cannot be written never hides them."""

from collections.abc import Callable
from pathlib import Path

import click

from trtllm_kvfix.errors import SettingsError


def check_folder(option: str, path: Path | None) -> None:
    """Before the work: refuse a file whose folder is not there."""
    if path is not None and not path.parent.is_dir():
        raise SettingsError(f"{option} is '{path}': there is no folder {path.parent}")


def write(option: str, path: Path | None, text: Callable[[], str]) -> None:
    """After the work. Standard error says where the file is, since standard output may be read by a program."""
    if path is None:
        return
    made = text()
    try:
        path.write_text(made, encoding="utf-8")
    except OSError as error:
        raise unwritable(option, path, error) from error
    say_written(path)


def say_written(path: Path) -> None:
    click.echo(f"Wrote {path}", err=True)


def unwritable(option: str, path: Path, error: OSError) -> SettingsError:
    return SettingsError(f"{option} is '{path}': it cannot be written: {error.strerror or error}")
