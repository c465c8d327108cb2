"""Upstream's own host tier, where its C++ loses count of free blocks: seen by settings, since no fix reaches it.

Up to 1.3.0rc13 V1's offload claims a block after it has changed tiers, so queues and counters of two tiers are mixed up
(T#12834). One thread is enough.
"""

from collections.abc import Iterable, Mapping

from trtllm_kvfix.overlay import releases, server_config
from trtllm_kvfix.tools.doctor.server_manager import ServerManager

REPAIRED = "1.3.0rc14"
SETTING = "host_cache_size"


def warning(version: str | None, manager: ServerManager, command: Iterable[str]) -> str:
    """What to say of a server that `command` starts; "" where nothing is wrong, or cannot be seen."""
    key, repaired = releases.key_of(version or ""), releases.key_of(REPAIRED)
    if key is None or repaired is None or key >= repaired or manager.name == "V2":
        return ""
    for file, document in reversed(list(server_config.documents(command))):
        section = document.get("kv_cache_config")
        size = section.get(SETTING) if isinstance(section, Mapping) else None
        if isinstance(size, int | float) and size > 0:
            return (
                f"{file.name} sets {SETTING}: {size}; before {REPAIRED} V1's own host tier corrupts its counts of free "
                "blocks, and no fix reaches it: set it to 0 and use our offload connector, or upgrade "
                "(docs/hazards/unfixed.md)"
            )
    return ""
