"""Which KV cache manager a server uses, as far as that shows before it has loaded its model.

`kv_cache_config.use_kv_cache_manager_v2` decides. The server's YAML file may set it; otherwise its default in upstream
counts, which is read in the source and not run. What cannot be seen from here: Python that starts a server may set it,
too, some models bring a manager of their own, and TensorRT-LLM may fall back to V1 where V2 lacks a feature.

Whether it has upstream's own host tier is here, too: some hazards need one, and up to 1.3.0rc13 V1's offload claims a
block after it has changed tiers, so queues and counters of two tiers are mixed up, and no fix reaches that (T#12834).
"""

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trtllm_kvfix.foreign_files import SOURCE_BYTES_MAX, text_of
from trtllm_kvfix.overlay import releases, server_config
from trtllm_kvfix.overlay.fix import HOST_TIER, Answer, Fix, Manager
from trtllm_kvfix.overlay.upstream import V2_PLACES

FILE = "llmapi/llm_args.py"
CLASS = "KvCacheConfig"
SETTING = "use_kv_cache_manager_v2"
AUTO = "auto"  # the model chooses
HOST_TIER_SETTING = "host_cache_size"
HOST_TIER_REPAIRED = "1.3.0rc14"


@dataclass(frozen=True)
class ServerManager:
    name: Manager | None  # None: it does not show here
    said: str  # for the verdict
    why: str
    has_host_tier: bool | None = None  # None: it does not show here

    def needs(self, fix: Fix, answer: Answer | None) -> bool:
        """Whether the fix could change anything in this server. `answer`: of its probe."""
        return not self.needless(fix, answer)

    def needless(self, fix: Fix, answer: Answer | None) -> str:
        """Why it could not: what stands behind "not needed"."""
        if fix.only_for is not None and self.name not in (None, fix.only_for):
            return f"for {self.name}"
        needs_host_tier = answer is not None and answer.only_with == HOST_TIER
        return "without a host tier" if needs_host_tier and self.has_host_tier is False else ""

    def as_dict(self) -> dict[str, Any]:
        return {"name": self.name, "said": self.said, "why": self.why, "has_host_tier": self.has_host_tier}


def of_server(package: Path, command: Iterable[str] = ()) -> ServerManager:
    """`package` is upstream's folder, and `command` starts the server."""
    sections = list(_cache_sections(command))
    chosen = next(
        (
            _made(section[SETTING], f"{file.name}'s manager", f"{file} sets {SETTING}")
            for file, section in sections
            if SETTING in section
        ),
        None,
    )
    has_host_tier = bool(_host_tier(sections)) if sections else None
    return replace(chosen or of_default(package), has_host_tier=has_host_tier)


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
    if said := _host_tier(_cache_sections(command)):
        return (
            f"{said}; before {HOST_TIER_REPAIRED} V1's own host tier corrupts its counts of free blocks, and no fix "
            "reaches it: set it to 0 and use our offload connector, or upgrade (docs/hazards/unfixed.md)"
        )
    return ""


def _host_tier(sections: Iterable[tuple[Path, Mapping[str, Any]]]) -> str:
    """Which file gives it a size, in words. Nothing: none does, and by default there is none."""
    for file, section in sections:
        if HOST_TIER_SETTING in section:
            size = section[HOST_TIER_SETTING]
            has_size = isinstance(size, int | float) and size > 0
            return f"{file.name} sets {HOST_TIER_SETTING}: {size}" if has_size else ""
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
