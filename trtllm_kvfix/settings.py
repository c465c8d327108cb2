"""Settings: `TRTLLM_KVFIX_*` over a YAML file over the defaults. The only reader of environment variables.

The command line comes before both: its options take their defaults from what `load` returns. The YAML file may be one
that others read too, so only its section `kvfix:` is ours. A name that is not known is an error, because a misspelt
setting that is skipped looks like a setting that does not help.
"""

import difflib
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple, NoReturn, TypeAlias

import yaml
from pydantic import BaseModel, ConfigDict, Field, PlainValidator, ValidationError

from trtllm_kvfix.errors import SettingsError
from trtllm_kvfix.replay.sizes import parse_size

ENV_PREFIX = "TRTLLM_KVFIX_"
ENV_FILE = ENV_PREFIX + "CONFIG"
SECTION = "kvfix"

# ("replay", "blocks_host") is kvfix.replay.blocks_host in a file, TRTLLM_KVFIX_REPLAY_BLOCKS_HOST in the environment.
Name: TypeAlias = tuple[str, ...]


def _size(value: object) -> int | str:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError("write a number of blocks, or bytes with a unit such as 40GiB")
    parse_size(value)
    return value


# One validator instead of a union's two: the error then names the setting and not a branch of its type.
Size: TypeAlias = Annotated[int | str, PlainValidator(_size)]


class ReplaySettings(BaseModel):
    """The cache and the scheduler that `trtllm-kvfix replay` models where its options do not say otherwise."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    tokens_per_block: int = Field(default=32, ge=1)
    blocks_primary: Size = 16384
    blocks_host: Size = 0
    max_batch_size: int = Field(default=64, ge=1)
    max_num_tokens: int = Field(default=8192, ge=1)
    tokens_per_iteration: int = Field(default=1, ge=1)
    iteration_ms: float = Field(default=0, ge=0)
    bytes_per_block: int | None = Field(default=None, ge=1)
    layers: int | None = Field(default=None, ge=1)
    kv_heads: int | None = Field(default=None, ge=1)
    head_dim: int | None = Field(default=None, ge=1)
    dtype_bytes: int = Field(default=2, ge=1)


class Settings(BaseModel):
    """Everything that can be set, one nested model for each command that has settings."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    replay: ReplaySettings = ReplaySettings()


class _Given(NamedTuple):
    value: Any
    where: str  # as the user wrote it, for the error message


def load(file: Path | None = None, environ: Mapping[str, str] | None = None) -> Settings:
    """Read the settings; `file` comes before the one that TRTLLM_KVFIX_CONFIG names."""
    if environ is None:
        environ = os.environ
    if file is None and ENV_FILE in environ:
        file = Path(environ[ENV_FILE])
    given = _from_file(file) if file is not None else {}
    given |= _from_environment(environ)
    return _validated(given)


def names(model: type[BaseModel] = Settings, prefix: Name = ()) -> Iterator[Name]:
    """Every setting there is, by the path to it."""
    for field_name, field in model.model_fields.items():
        nested = field.annotation
        if isinstance(nested, type) and issubclass(nested, BaseModel):
            yield from names(nested, (*prefix, field_name))
        else:
            yield (*prefix, field_name)


def _from_file(file: Path) -> dict[Name, _Given]:
    try:
        document = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise SettingsError(f"settings file {file} cannot be read: {error}") from error
    section = document.get(SECTION) if isinstance(document, dict) else None
    if not isinstance(section, dict):
        raise SettingsError(
            f"settings file {file} has no mapping `{SECTION}:` at its top level; settings belong below it"
        )
    known = {".".join((SECTION, *name)): name for name in names()}
    given: dict[Name, _Given] = {}
    for dotted, value in _flattened(section, SECTION):
        if dotted not in known:
            _refuse(dotted, f"{file}", known)
        given[known[dotted]] = _Given(value, f"{file}: {dotted}")
    return given


def _flattened(section: dict[Any, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in section.items():
        dotted = f"{prefix}.{key}"
        if isinstance(value, dict):
            yield from _flattened(value, dotted)
        else:
            yield dotted, value


def _from_environment(environ: Mapping[str, str]) -> dict[Name, _Given]:
    known = {ENV_PREFIX + "_".join(name).upper(): name for name in names()}
    given: dict[Name, _Given] = {}
    for variable, text in environ.items():
        if not variable.startswith(ENV_PREFIX) or variable == ENV_FILE:
            continue
        if variable not in known:
            _refuse(variable, "the environment", [*known, ENV_FILE])
        given[known[variable]] = _Given(_scalar(text), variable)
    return given


def _scalar(text: str) -> Any:
    """A variable's text means what the same text means in the YAML file: 7 is a number, null is none."""
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text


def _refuse(name: str, where: str, known: Iterable[str]) -> NoReturn:
    known = sorted(known)
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
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
        setting = given[tuple(str(part) for part in problem["loc"])]
        message = problem["msg"].removeprefix("Value error, ")
        raise SettingsError(f"{setting.where} is {setting.value!r}: {message}") from error
