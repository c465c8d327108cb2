"""The section `kvfix:` in the YAML that trtllm-serve and trtllm-bench take.

Upstream refuses unknown keys, so we take ours out of the parsed file before upstream looks at it. Without the hook it
refuses the file, which is right: a configuration that asks for the fixes never runs without them unless somebody says
so, by TRTLLM_KVFIX_ENABLED. That switch must start the server at any time (bypass.py).

Upstream hands over only the parsed content, which shows neither the file's name nor a key that is there twice. So the
file itself is read as well.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import yaml

from trtllm_kvfix.errors import SettingsError
from trtllm_kvfix.foreign_files import text_of
from trtllm_kvfix.log import log
from trtllm_kvfix.overlay.fix import Replacement, Seam
from trtllm_kvfix.overlay.upstream import Upstream
from trtllm_kvfix.settings import (
    FILE_BYTES_MAX,
    SECTION,
    UNREADABLE,
    Settings,
    in_one_line,
    load,
    refuse_misread,
    shortened,
)

if TYPE_CHECKING:
    from trtllm_kvfix.overlay.activation import Activation


# The options by which trtllm-serve and trtllm-bench take the file, whatever its name ends in.
OPTIONS = ("--config", "--extra_llm_api_options")
DYNAMO_OPTION = "--extra-engine-args"
SUFFIXES = (".yaml", ".yml")


def file_of(document: Any, named: Iterable[Any]) -> Path | None:
    """The file with this content among those that the command line or `named` names."""
    for _, file in _files([*named, *sys.argv[1:]]):
        try:
            if _alike(yaml.safe_load(text_of(file, FILE_BYTES_MAX)), document, set()):
                return file
        except UNREADABLE:
            continue
    return None


def _alike(ours: Any, theirs: Any, compared: set[tuple[int, int]]) -> bool:
    """Like ==, with each pair compared once, however many aliases it has: a few lines of YAML may have billions."""
    pair = (id(ours), id(theirs))
    if pair in compared:
        return True  # or it is being compared, or the answer is False already
    if isinstance(ours, dict) and isinstance(theirs, dict):
        compared.add(pair)
        return ours.keys() == theirs.keys() and all(_alike(ours[key], theirs[key], compared) for key in ours)
    if isinstance(ours, list) and isinstance(theirs, list):
        compared.add(pair)
        return len(ours) == len(theirs) and all(map(_alike, ours, theirs, repeat(compared)))
    return bool(ours == theirs)


def settings_of(section: Any, file: Path | None, environ: Mapping[str, str]) -> Settings:
    """Read the section `kvfix:` of the server's file. The environment takes precedence over it, except where the file
    switches the fixes off: `run` has set the variable that would override that."""
    where = f"{file}" if file else "the configuration"
    if file is not None:
        refuse_misread(text_of(file, FILE_BYTES_MAX), f"{file}")
    if not isinstance(section, dict):
        raise SettingsError(f"`{SECTION}:` in {where} is {shortened(section)}; settings belong below it")
    settings = load(environ=environ, section=section, where=where)
    return settings.model_copy(update={"enabled": False}) if switched_off(section) else settings


def switched_off(section: Mapping[Any, Any]) -> bool:
    return section.get("enabled") is False


def check(command: Iterable[str], environ: Mapping[str, str]) -> list[str]:
    """Refuse what the hook would refuse once TensorRT-LLM is imported. The answer is a line for each section that was
    read. A file that is not there is left to the command, which may run in another folder."""
    lines = []
    for file, section in _sections(command):
        settings_of(section, file, environ)
        off = ": the server starts WITHOUT the fixes" if switched_off(section) else ""
        lines.append(f"`{SECTION}:` in {file} is valid{off}")
    return lines


def settings_for(command: Iterable[str], environ: Mapping[str, str]) -> Settings:
    """The settings of the server that `command` starts. Where several files have a section, the last counts."""
    settings = load(environ=environ)
    for file, section in _sections(command):
        settings = settings_of(section, file, environ)
    return settings


def refuse_absent(command: Iterable[str]) -> None:
    """Refuse a command whose server has a file that is not there: what `doctor` said would be about a server without
    it. `run` leaves such a file to the command, which may make it, or change its folder."""
    command = list(command)
    is_upstreams = any(Path(word).name.startswith("trtllm-") for word in command)
    for option, file in _named(command):
        if option not in (*OPTIONS, DYNAMO_OPTION) or not (is_upstreams or file.endswith(SUFFIXES)):
            continue  # what a program of somebody else calls its configuration need not be a file
        if file and not file.startswith("-") and not _exists(file):
            raise SettingsError(
                f"{option} is {file}, which does not exist (the folder is {Path.cwd()}): write its whole path, or "
                "leave the option out for an answer about a server without this file"
            )


def end(error: SettingsError) -> NoReturn:
    """In a command of the server, end it with the error in one line; elsewhere, raise."""
    click = sys.modules.get("click")
    if click is None or click.get_current_context(silent=True) is None:
        raise error
    shown = click.ClickException(str(error))
    shown.exit_code = error.exit_code
    raise shown from None


def _sections(command: Iterable[str]) -> Iterator[tuple[Path, Any]]:
    """The sections `kvfix:` in the files that the command names, each with its file."""
    for file, document in documents(command):
        if SECTION in document:
            yield file, document[SECTION]


def documents(command: Iterable[str]) -> Iterator[tuple[Path, dict[Any, Any]]]:
    """The mappings in the YAML files that the command names, each with its file."""
    for option, file in _files(command):
        try:
            document = yaml.safe_load(text_of(file, FILE_BYTES_MAX))
        except UNREADABLE as error:
            if option is None:
                continue  # an argument that only looks like the server's file
            raise SettingsError(f"{option} is {file}, which cannot be read: {in_one_line(error)}") from error
        if isinstance(document, dict):
            yield file, document


def _files(arguments: Iterable[Any]) -> Iterator[tuple[str | None, Path]]:
    """Files that may be the server's, each with the option that names it, if one of OPTIONS does."""
    for option, file in _named(arguments):
        if (option in OPTIONS or file.endswith(SUFFIXES)) and _is_file(file):
            yield option if option in OPTIONS else None, Path(file)


def _named(arguments: Iterable[Any]) -> Iterator[tuple[str, str]]:
    """Each argument, behind the word that may be its option."""
    before = ""
    for argument in arguments:
        text = argument if isinstance(argument, str) else ""
        name, equals, value = text.partition("=")
        # A path may have an = of its own.
        yield (name, value) if equals and not _is_file(text) else (before, text)
        before = text


def _is_file(name: str) -> bool:
    """False where the system takes no such name: a shell's script, which is one argument, may be long."""
    try:
        return Path(name).is_file()
    except OSError:
        return False


def _exists(name: str) -> bool:
    """True also for what is there and no file, such as a pipe of the shell (`<(...)`), which is not read here."""
    try:
        return Path(name).exists()
    except OSError:
        return False


TRIGGER = "tensorrt_llm.llmapi.llm_args"
FUNCTION = "update_llm_args_with_extra_dict"


def replacements(active: "Activation") -> list[Replacement]:
    if not Upstream().has(TRIGGER, FUNCTION):
        return []
    return [Replacement(Seam(TRIGGER, FUNCTION), partial(taking_out, active))]


def taking_out(active: "Activation", update: Callable[..., Any]) -> Callable[..., Any]:
    def update_llm_args_with_extra_dict(llm_args: Any, llm_args_dict: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            rest = without_section(active, llm_args_dict, (*args, *kwargs.values()))
        except SettingsError as error:
            end(error)
        return update(llm_args, rest, *args, **kwargs)

    return update_llm_args_with_extra_dict


def without_section(active: "Activation", document: Any, named: Iterable[Any] = ()) -> Any:
    """Honour the section and return the rest; the caller's dictionary stays as it is. `named`: what upstream was given
    besides, perhaps the name of the file."""
    if not isinstance(document, dict) or SECTION not in document:
        return document
    section = document[SECTION]
    file = file_of(document, named)
    settings = settings_of(section, file, active.children.given())
    if switched_off(section):
        log.warning("%s.enabled is false in the server's configuration: it starts WITHOUT the fixes", SECTION)
        active.switch_off(settings)
    else:
        active.activate(settings)
    return {key: value for key, value in document.items() if key != SECTION}
