"""Which KV cache manager a server uses, as far as that shows before it has loaded its model.

`kv_cache_config.use_kv_cache_manager_v2` decides. The server's YAML file may set it; otherwise its default in upstream
counts, which is read in the source and not run. What cannot be seen from here: Python that starts a server may set it,
too, some models bring a manager of their own, and TensorRT-LLM may fall back to V1 where V2 lacks a feature.

Its host tier is here, too, where upstream's C++ loses count of free blocks and no fix reaches it. Up to 1.3.0rc13 V1's
offload claims a block after it has changed tiers, so queues and counters of two tiers are mixed up (T#12834).
"""

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtllm_kvfix.foreign_files import SOURCE_BYTES_MAX, text_of
from trtllm_kvfix.overlay import releases, server_config
from trtllm_kvfix.overlay.fix import Fix, Manager
from trtllm_kvfix.overlay.upstream import V2_PLACES

FILE = "llmapi/llm_args.py"
CLASS = "KvCacheConfig"
SETTING = "use_kv_cache_manager_v2"
AUTO = "auto"  # the model chooses
HOST_TIER = "host_cache_size"
HOST_TIER_REPAIRED = "1.3.0rc14"


@dataclass(frozen=True)
class ServerManager:
    name: Manager | None  # None: it does not show here
    said: str  # for the verdict
    why: str

    def needs(self, fix: Fix) -> bool:
        """Whether the fix could change anything in this server."""
        return fix.only_for is None or self.name is None or fix.only_for == self.name

    def as_dict(self) -> dict[str, Any]:
        return {"name": self.name, "said": self.said, "why": self.why}


def of_server(package: Path, command: Iterable[str] = ()) -> ServerManager:
    """`package` is upstream's folder, and `command` starts the server."""
    for file, section in _cache_sections(command):
        if SETTING in section:
            return _made(section[SETTING], f"{file.name}'s manager", f"{file} sets {SETTING}")
    return of_default(package)


def of_default(package: Path) -> ServerManager:
    try:
        tree = ast.parse(text_of(package / FILE, SOURCE_BYTES_MAX, errors="replace"))
    except (OSError, ValueError, SyntaxError) as error:
        return _unknown(f"{FILE} cannot be read: {error}")
    classes = [each for each in tree.body if isinstance(each, ast.ClassDef) and each.name == CLASS]
    if not classes:
        return _unknown(f"{FILE} has no {CLASS}")
    for node in classes[0].body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == SETTING:
            return _made(_constant(node.value), "default manager", f"{CLASS}.{SETTING} in {FILE}")
    why = f"{CLASS} in {FILE} has no {SETTING}"
    if any(package.parent.joinpath(*place.split(".")).with_suffix(".py").is_file() for place in V2_PLACES):
        return _unknown(f"{why}, and there is a module of V2")
    return ServerManager("V1", "default manager V1", why)


def host_tier_warning(version: str | None, manager: ServerManager, command: Iterable[str]) -> str:
    """What to say of the host tier of a server that `command` starts. Nothing where nothing is wrong, or cannot be
    seen."""
    key, repaired = releases.key_of(version or ""), releases.key_of(HOST_TIER_REPAIRED)
    if key is None or repaired is None or key >= repaired or manager.name == "V2":
        return ""
    for file, section in _cache_sections(command):
        size = section.get(HOST_TIER)
        if isinstance(size, int | float) and size > 0:
            return (
                f"{file.name} sets {HOST_TIER}: {size}; before {HOST_TIER_REPAIRED} V1's own host tier corrupts its "
                "counts of free blocks, and no fix reaches it: set it to 0 and use our offload connector, or upgrade "
                "(docs/hazards/unfixed.md)"
            )
    return ""


def _cache_sections(command: Iterable[str]) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """What the server's files say of its KV cache. Of several files the last counts, so it comes first."""
    for file, document in reversed(list(server_config.documents(command))):
        section = document.get("kv_cache_config")
        if isinstance(section, Mapping):
            yield file, section


def _made(value: Any, whose: str, why: str) -> ServerManager:
    if isinstance(value, bool):
        name: Manager = "V2" if value else "V1"
        return ServerManager(name, f"{whose} {name}", f"{why}: {value}")
    if value == AUTO:
        return ServerManager(None, f"{whose} V1 or V2, as the model chooses", f"{why}: {value}")
    return _unknown(f"{why}, to what is neither true, false nor {AUTO}")


def _unknown(why: str) -> ServerManager:
    return ServerManager(None, "manager unknown, V1 or V2", why)


def _constant(value: ast.expr | None) -> Any:
    """Of `= False`, and of `= Field(default=False, ...)`."""
    if isinstance(value, ast.Call):
        given = [each.value for each in value.keywords if each.arg == "default"]
        value = next(iter([*given, *value.args[:1]]), None)
    return value.value if isinstance(value, ast.Constant) else None
