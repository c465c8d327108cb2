"""What an operator may change while the server runs: a small YAML file, looked at in every iteration.

    {store: on, load: off, drop: 2}

`drop` empties the host tier each time its number changes. No file: everything is on.
"""

import logging
from pathlib import Path
from typing import Any

import yaml

_log = logging.getLogger("trtllm_kvfix.offload")
NAMES = ("store", "load", "drop")


class Switches:
    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._seen: tuple[int, int] | None = None  # time and size of what was read last
        self._drop: Any = None
        self.store = True
        self.load = True

    def read(self) -> bool:
        """Whether the host tier is to be emptied now. A file that makes no sense changes nothing, and is said once."""
        if self._file is None:
            return False
        try:
            stat = self._file.stat()
        except OSError:
            self.store = self.load = True
            self._seen = None
            return False
        seen = stat.st_mtime_ns, stat.st_size
        if seen == self._seen:
            return False
        self._seen = seen
        try:
            wanted = yaml.safe_load(self._file.read_text(encoding="utf-8")) or {}
            return self._take(wanted)
        except (OSError, UnicodeDecodeError, ValueError, yaml.YAMLError) as error:
            _log.error("%s changes nothing: %s", self._file, error)
            return False

    def _take(self, wanted: Any) -> bool:
        if not isinstance(wanted, dict) or not set(wanted) <= set(NAMES):
            raise ValueError(f"write a mapping of {', '.join(NAMES)}, not {wanted!r}")
        for name in ("store", "load"):
            if not isinstance(wanted.get(name, True), bool):
                raise ValueError(f"{name} is {wanted[name]!r}; write on or off")
        self.store, self.load = wanted.get("store", True), wanted.get("load", True)
        before, self._drop = self._drop, wanted.get("drop")
        drop = self._drop is not None and self._drop != before
        _log.warning(
            "%s: store %s, load %s%s", self._file, self.store, self.load, ", host tier emptied" if drop else ""
        )
        return drop
