"""What an operator turns off and on: a small YAML file, which the executor's thread looks at in every iteration.

    {store: on, load: off, drop: 2}

`drop` empties the host tier each time its number changes. A switch that the file does not name stays as it is. Without
a file all is on. Reading must not block, so the file must be small and flat. A file of another user changes nothing,
nor does one that cannot be looked at: its folder may be unmounted for a while.
"""

import os
import stat
from itertools import islice
from pathlib import Path
from typing import Any

import yaml

from trtllm_kvfix.errors import SettingsError
from trtllm_kvfix.foreign_files import all_of, opened
from trtllm_kvfix.log import offload_log as log
from trtllm_kvfix.settings import repeated_keys

BYTES_MAX = 4096
DIRECTIONS = ("store", "load")
NAMES = (*DIRECTIONS, "drop")


class Switches:
    """What the operator's file says."""

    def __init__(self, file: Path | None) -> None:
        if file is not None and not file.parent.is_dir():
            raise SettingsError(
                f"kvfix.offload.control_file is {str(file)!r}: there is no folder {str(file.parent)!r} in which "
                "it could be written"
            )
        self._file = file
        self.has_file = file is not None
        self._seen: tuple[int, ...] | None = None  # of the file that was read last
        self._complained: tuple[Any, ...] = ()  # what was logged last, and of which file
        self._drop: int | None = None
        self.store = True
        self.load = True

    def read(self) -> bool:
        """Whether the host tier must be emptied now. A file that makes no sense changes nothing, and is logged once."""
        if self._file is None:
            return False
        try:
            found = self._file.stat()
        except OSError as error:
            self._seen = None
            if isinstance(error, FileNotFoundError) and self._file.parent.is_dir():
                self.store = self.load = True
            else:
                self._complain((), error)
            return False
        # With ctime a new owner or mode shows, which may be all that the file lacked.
        seen = found.st_ino, found.st_ctime_ns, found.st_mtime_ns, found.st_size
        if seen == self._seen:
            return False
        self._seen = seen
        try:
            return self._take(checked(parsed(content_of(self._file))))
        except OSError as error:
            self._seen = None  # it may be readable next time, although nobody has touched it: too many open files
            self._complain(seen, error)
        except ValueError as error:
            self._complain(seen, error)
        return False

    def _complain(self, seen: tuple[int, ...], error: Exception) -> None:
        complaint = seen, str(error)
        if complaint != self._complained:
            log.error("%s changes nothing: %s", self._file, error)
        self._complained = complaint

    def _take(self, wanted: dict[str, Any]) -> bool:
        self.store, self.load = wanted.get("store", self.store), wanted.get("load", self.load)
        drop = wanted.get("drop", self._drop) != self._drop
        self._drop = wanted.get("drop", self._drop)
        log.warning("%s: store %s, load %s%s", self._file, self.store, self.load, ", host tier emptied" if drop else "")
        return drop


def content_of(file: Path) -> str:
    """Return the text of a file that belongs to this user, or to root."""
    with opened(file) as stream:
        found = os.fstat(stream.fileno())
        if found.st_uid not in (os.geteuid(), 0) or found.st_mode & stat.S_IWOTH:
            raise ValueError(
                f"its owner is user {found.st_uid} and its mode {stat.S_IMODE(found.st_mode):o}; it must belong to "
                f"user {os.geteuid()} or to root, and must not be writable by everybody"
            )
        return all_of(stream, BYTES_MAX).decode("utf-8")


def parsed(text: str) -> Any:
    if not text.endswith(("\n", "}")):
        raise ValueError("it ends with neither a newline nor a brace, so it may still be being written")
    try:
        is_flat = nesting_of(text) <= 1
        wanted = yaml.safe_load(text) if is_flat else None
        twice = repeated_keys(text) if is_flat else []
    except Exception as error:  # a tag on what is none of its kind raises whatever Python does there
        raise ValueError(f"{type(error).__name__}: {str(error)[:200]}") from error
    if not is_flat:
        raise ValueError("it has more than one mapping or list")
    if twice:
        raise ValueError(f"it names {twice[0][:80]} more than once")
    return wanted


def nesting_of(text: str) -> int:
    """Count mappings and lists, up to two: a file that nests many of them takes seconds to read."""
    events = yaml.parse(text, yaml.SafeLoader)
    return len(list(islice((one for one in events if isinstance(one, yaml.CollectionStartEvent)), 2)))


def checked(wanted: Any) -> dict[str, Any]:
    """Raises ValueError without values: a few lines of YAML may name more than a log can hold."""
    if not isinstance(wanted, dict) or not wanted or not set(wanted) <= set(NAMES):
        raise ValueError(f"write a mapping of {', '.join(NAMES)}")
    for name in DIRECTIONS:
        if not isinstance(wanted.get(name, True), bool):
            raise ValueError(f"{name} is neither on nor off")
    if isinstance(wanted.get("drop", 0), bool) or not isinstance(wanted.get("drop", 0), int):
        raise ValueError("drop is not a whole number")
    return wanted
