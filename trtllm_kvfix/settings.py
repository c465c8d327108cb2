"""Sources of the settings: `TRTLLM_KVFIX_*` over YAML over the defaults. The only reader of environment variables.

The command line overrides both: its options take their defaults from what `load` returns. Other programs may read the
same YAML file, so only its section `kvfix:` is ours. A name that is not known is an error, because a misspelt setting
that is skipped looks like a setting that does not help.
"""

import difflib
import math
import os
import re
import reprlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeAlias

import yaml
from pydantic import ValidationError

from trtllm_kvfix.errors import SettingsError
from trtllm_kvfix.foreign_files import text_of
from trtllm_kvfix.sections import FixChoices, FixSettings, ReplaySettings, Settings, Word

__all__ = [
    "ENV_ENABLED",
    "ENV_FILE",
    "ENV_JOB",
    "ENV_PREFIX",
    "FILE_BYTES_MAX",
    "SECTION",
    "UNREADABLE",
    "FixChoices",
    "FixSettings",
    "ReplaySettings",
    "Settings",
    "Word",
    "as_variables",
    "environment",
    "export",
    "fix_ids",
    "in_one_line",
    "load",
    "names",
    "refuse_misread",
    "repeated_keys",
    "shortened",
    "switched_off",
    "unset",
    "variable_of",
]

ENV_PREFIX = "TRTLLM_KVFIX_"
ENV_FILE = ENV_PREFIX + "CONFIG"
ENV_ENABLED = ENV_PREFIX + "ENABLED"
ENV_JOB = ENV_PREFIX + "JOB"  # written by us: processes of one start bear the same, so that they are compared
SECTION = "kvfix"
FILE_BYTES_MAX = 256 << 10  # of a YAML file; PyYAML needs seconds for as much
SHOWN_MAX = 300  # letters of a value in an error; lists of lists have many short ones
LEVELS_MAX = 8  # deeper than any setting is; a mapping that holds itself by an alias has no end

# What reading a YAML file may raise. A date or a tag on what is none of its kind raises whatever Python does there.
UNREADABLE = (OSError, yaml.YAMLError, RecursionError, ValueError, TypeError, AttributeError, LookupError)

# Numbers that YAML 1.1 takes for others than most people do: 070 is 56 to it, 1:30 is 90, and 1_0 is 10.
MISREAD = re.compile(r"[-+]?0[\dxb_].*|.*[_:].*")

# ("replay", "blocks_host") is kvfix.replay.blocks_host in a file, TRTLLM_KVFIX_REPLAY_BLOCKS_HOST in the environment.
Name: TypeAlias = tuple[str, ...]


class _Given(NamedTuple):
    value: Any
    where: str  # as the user wrote it, for the error message


def load(
    file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    *,
    section: Mapping[Any, Any] | None = None,
    where: str = "the configuration",
    options: Mapping[str, tuple[str, str]] | None = None,
) -> Settings:
    """Read the settings. `file` overrides the one that TRTLLM_KVFIX_CONFIG names. `section` is the content of `kvfix:`
    if the file has been read already, and overrides both; errors call that file `where`. `options` are those of the
    command line, by the variable that they override: the option as errors name it, and its text.

    Each source must be right by itself: a value that another source overrides today counts tomorrow, without it."""
    if environ is None:
        environ = os.environ
    named_by = ""
    if file is None and environ.get(ENV_FILE):  # set to nothing, as containers do, it names no file
        file, named_by = Path(environ[ENV_FILE]), f", which {ENV_FILE} names,"
    sources = [
        _from_file(file, named_by) if file is not None else {},
        _from_section(section, where) if section is not None else {},
        _from_environment(environ),
        _from_options(options or {}),
    ]
    given: dict[Name, _Given] = {}
    for source in sources:
        _validated(source)
        given |= source
    return _validated(given)


def switched_off(environ: Mapping[str, str]) -> bool:
    """The switch that starts a server whatever the other settings are: nothing else is looked at."""
    try:
        return _scalar(environ.get(ENV_ENABLED, ""), ENV_ENABLED) is False
    except SettingsError:
        return False


def as_variables(settings: Settings) -> dict[str, str]:
    """The settings that differ from the defaults, as the variables that `load` reads: so settings reach worker
    processes."""
    chosen, default = settings.model_dump(), Settings().model_dump()
    return {
        variable_of(name): _text(name, _at(chosen, name)) for name in names() if _at(chosen, name) != _at(default, name)
    }


def _text(name: Name, value: Any) -> str:
    """Text that `_scalar` reads as the value. A fix's choice needs none of the quotes that YAML puts around `on`."""
    if name[0] == "fixes":
        return str(value)
    # YAML folds a text at its spaces and line breaks; what stands behind the first line is the end of a document.
    style = '"' if isinstance(value, str) and "\n" in value else None
    return yaml.safe_dump(value, default_flow_style=True, default_style=style, width=math.inf).partition("\n")[0]


def environment() -> dict[str, str]:
    return dict(os.environ)


def export(variables: Mapping[str, str]) -> None:
    """Set variables of this process; workers that it starts inherit or are sent them."""
    os.environ.update(variables)


def unset(names: Iterable[str]) -> None:
    for name in list(names):
        os.environ.pop(name, None)


def names() -> list[Name]:
    """Every setting there is, by the path to it."""
    return [tuple(dotted.split(".")[1:]) for dotted, _ in _flattened(Settings().model_dump(), SECTION)]


def fix_ids() -> list[str]:
    return [name[-1] for name in names() if name[0] == "fixes"]


def variable_of(name: Name) -> str:
    return ENV_PREFIX + "_".join(name).upper().replace("-", "_")


def _at(tree: Mapping[str, Any], name: Name) -> Any:
    for part in name:
        tree = tree[part]
    return tree


def _from_file(file: Path, named_by: str) -> dict[Name, _Given]:
    try:
        text = text_of(file, FILE_BYTES_MAX)
        document = yaml.safe_load(text)
        refuse_misread(text, f"settings file {file}")
    except UNREADABLE as error:
        raise SettingsError(f"settings file {file}{named_by} cannot be read: {in_one_line(error)}") from error
    section = document.get(SECTION) if isinstance(document, dict) else None
    if not isinstance(section, dict):
        raise SettingsError(
            f"settings file {file}{named_by} has no mapping `{SECTION}:` at its top level; settings belong below it"
        )
    return _from_section(section, f"{file}")


def in_one_line(error: Exception) -> str:
    """YAML's own text draws the place over several lines, and calls the file `<unicode string>`."""
    if isinstance(error, RecursionError):
        return "mappings and lists are nested too deeply"
    if isinstance(error, OSError):
        return error.strerror or str(error)  # whoever reports it names the file
    if isinstance(error, TypeError | AttributeError | LookupError):
        return f"a tag does not fit its value ({type(error).__name__}: {error})"
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return str(error).partition("\n")[0]
    mark = error.problem_mark
    return f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}"


def refuse_misread(text: str, where: str) -> None:
    """Refuse what YAML reads without a word, and not as it was meant."""
    if twice := repeated_keys(text):
        raise SettingsError(f"{where} has {', '.join(twice)} more than once; only the last would count")
    document = yaml.compose(text, Loader=yaml.SafeLoader)
    for key, value in document.value if isinstance(document, yaml.MappingNode) else ():
        if key.value == SECTION and (odd := _odd_number(value)):
            raise SettingsError(f"{where}, line {odd.start_mark.line + 1}: {_explained(odd)}")


def _odd_number(node: yaml.Node) -> yaml.ScalarNode | None:
    """The first one. Each mapping or list is looked at once, however many aliases it has."""
    visited, left = set[int](), [node]
    while left:
        one = left.pop(0)
        if isinstance(one, yaml.ScalarNode):
            is_number = one.tag in ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
            if is_number and one.style is None and MISREAD.fullmatch(one.value):
                return one
        elif id(one) not in visited:
            visited.add(id(one))
            pairs = one.value if isinstance(one, yaml.MappingNode) else [one.value]
            left += [each for pair in pairs for each in pair]
    return None


def _explained(odd: yaml.ScalarNode) -> str:
    return f"YAML reads {odd.value} as {yaml.safe_load(odd.value)}; write the number in decimal digits alone"


def repeated_keys(text: str) -> list[str]:
    """Keys that stand twice at the top of a document, or twice in one mapping of ours. To YAML, the last wins."""
    document = yaml.compose(text, Loader=yaml.SafeLoader)
    return list(_repeated(document, "", set())) if isinstance(document, yaml.MappingNode) else []


def _repeated(mapping: yaml.MappingNode, prefix: str, visited: set[int]) -> Iterator[str]:
    """Each mapping once, however many aliases it has: a few lines of YAML may have billions."""
    visited.add(id(mapping))
    seen: set[str] = set()
    for key, value in mapping.value:
        name = prefix + str(key.value)
        if name in seen:
            yield name
        seen.add(name)
        if isinstance(value, yaml.MappingNode) and id(value) not in visited and name.split(".")[0] == SECTION:
            yield from _repeated(value, name + ".", visited)


def _from_section(section: Mapping[Any, Any], where: str) -> dict[Name, _Given]:
    known = {".".join((SECTION, *name)): name for name in names()}
    given: dict[Name, _Given] = {}
    for dotted, value in _flattened(section, SECTION):
        below = [name for name in known if name.startswith(f"{dotted}.")]
        if below and value == {}:
            continue  # a section with nothing in it
        if below:
            raise SettingsError(
                f"{dotted} in {where} is {shortened(value)}; it has settings of its own, such as {min(below)}"
            )
        if dotted not in known:
            sections = {name.rpartition(".")[0] for name in known} - {SECTION}
            _refuse(dotted, where, [*known, *sections] if isinstance(value, dict) else known)
        given[known[dotted]] = _Given(value, f"{where}: {dotted}")
    return given


def _flattened(section: Mapping[Any, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in section.items():
        dotted = f"{prefix}.{key}"
        if isinstance(value, dict) and value and dotted.count(".") < LEVELS_MAX:
            yield from _flattened(value, dotted)
        else:
            yield dotted, value


def _from_environment(environ: Mapping[str, str]) -> dict[Name, _Given]:
    known = {variable_of(name): name for name in names()}
    given: dict[Name, _Given] = {}
    for variable, text in environ.items():
        if not variable.upper().startswith(ENV_PREFIX) or variable in (ENV_FILE, ENV_JOB):
            continue
        if variable not in known:
            _refuse(variable, "the environment", [*known, ENV_FILE])
        if not text:
            continue  # set to nothing, as containers do, it is not set
        given[known[variable]] = _Given(_scalar(text, variable), variable)
    return given


def _from_options(options: Mapping[str, tuple[str, str]]) -> dict[Name, _Given]:
    known = {variable_of(name): name for name in names()}
    return {known[variable]: _Given(_scalar(text, option), option) for variable, (option, text) in options.items()}


def _scalar(text: str, where: str) -> Any:
    """A variable's text means what the same text means in the YAML file: 7 is a number, null is none."""
    try:
        document = yaml.compose(text, Loader=yaml.SafeLoader)
        if document is None:
            return text if text.strip() else None
        if odd := _odd_number(document):
            raise SettingsError(f"{where} is {shortened(text)}: {_explained(odd)}")
        value = yaml.safe_load(text)
        is_bare_text = isinstance(value, str) and isinstance(document, yaml.ScalarNode) and document.style is None
        # A path may have ` #` in it, behind which YAML reads a comment.
        return text if is_bare_text and document.end_mark.index < len(text.rstrip()) else value
    except UNREADABLE:
        return text


def shortened(value: Any) -> str:
    """A value for an error message. Aliases may make a few lines of YAML longer than a log can hold."""
    short = reprlib.Repr()
    short.maxstring = short.maxother = short.maxlong = 200
    text = short.repr(value)
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}..."


def _refuse(name: str, where: str, known: Iterable[str]) -> NoReturn:
    by_letters = {each.lower(): each for each in sorted(known)}
    near = difflib.get_close_matches(name.lower(), by_letters, n=1)
    hint = f"did you mean {by_letters[near[0]]}?" if near else f"known are {', '.join(by_letters.values())}"
    raise SettingsError(f"unknown setting {name} in {where}; {hint}")


def _validated(given: Mapping[Name, _Given]) -> Settings:
    tree: dict[str, Any] = {}
    for (*groups, leaf), setting in given.items():
        node = tree
        for group in groups:
            node = node.setdefault(group, {})
        node[leaf] = setting.value
    try:
        return Settings.model_validate(tree)
    except ValidationError as error:
        problem = error.errors()[0]
        below = problem.get("ctx", {}).get("below")  # where a mapping's own check names one of its keys
        setting = given[tuple(str(part) for part in (*problem["loc"], below) if part is not None)]
        is_switch = problem["type"] == "bool_type"
        message = "write true or false, without quotes" if is_switch else problem["msg"].removeprefix("Value error, ")
        raise SettingsError(f"{setting.where} is {shortened(setting.value)}: {message}") from error
