"""BlockEvents as the KV events that vLLM publishes and that Dynamo's router reads. Plain values, nothing to install.

A block there is a 64-bit number on a medium, so it carries the first half of our hash. A block that moves is stored on
the new medium, with everything that a router needs to know, and removed from the old one. Our event of a move does not
repeat all that, so the translator remembers the event by which the block was stored.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from trtllm_kvfix.errors import KvfixError
from trtllm_kvfix.native import BlockEvent

Shape = Literal["map", "array"]
Message = dict[str, Any] | list[Any]

MEDIUMS = {"primary": "GPU", "host": "CPU"}
FIRST_HALF = 2**64 - 1
# In the order of vLLM's arrays, which have no place for what Dynamo alone reads. It takes messages of either shape.
STORED = (
    "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name", "extra_keys",
    "group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window",
)  # fmt: skip
REMOVED = ("block_hashes", "medium", "group_idx")


@dataclass
class Known:
    """A block as a router knows it."""

    message: dict[str, Any]
    tier: str


class Translator:
    """Translates one manager's events, all of them and in order.

    `windows`: its window sizes, where it has any. `lora_names`: by LoRA id; may grow while the manager runs.
    """

    def __init__(
        self,
        windows: Sequence[int] | None = None,
        shape: Shape = "map",
        *,
        lora_names: Mapping[int, str] | None = None,
    ) -> None:
        self._windows = tuple(windows or ())
        self._groups = groups_of(self._windows)
        self._lora_names: Mapping[int, str] = {} if lora_names is None else lora_names
        self._shape = shape
        self._known: dict[tuple[int | None, int], Known] = {}
        self._next_id = 0

    def translate(self, events: Iterable[BlockEvent]) -> list[Message]:
        return [shaped(message, self._shape) for event in events for message in self._messages(event)]

    def _messages(self, event: BlockEvent) -> list[dict[str, Any]]:
        lost = event.event_id != self._next_id
        self._next_id = event.event_id + 1
        messages = self._forget_all() if lost else []
        key = (event.window_size, event.block_hash)
        if event.kind == "stored":
            self._known[key] = Known(self._stored(event), event.tier)
            return [*messages, self._known[key].message]
        known = self._known.get(key)
        if known is None:  # announced by an event that was lost
            return messages
        if event.kind == "removed":
            del self._known[key]
            return [*messages, removed(known)]
        if event.tier == known.tier:  # another priority is nothing to a router
            return messages
        before, known.tier = removed(known), event.tier
        known.message = {**known.message, "medium": MEDIUMS[event.tier]}
        return [*messages, known.message, before]

    def _stored(self, event: BlockEvent) -> dict[str, Any]:
        parent = event.parent_hash
        return {
            "type": "BlockStored",
            "block_hashes": [event.block_hash & FIRST_HALF],
            "parent_block_hash": None if parent is None else parent & FIRST_HALF,
            "token_ids": event.tokens,
            "block_size": event.tokens_per_block,
            "lora_id": event.lora_id,
            "medium": MEDIUMS[event.tier],
            "lora_name": self._lora_name(event.lora_id),
            "cache_salt": salt_text(event.salt),
            "extra_keys": [extra_keys(event)],
            "block_mm_infos": [images(event)],
            **self._group(event.window_size),
        }

    def _lora_name(self, lora_id: int | None) -> str | None:
        """Dynamo distinguishes adapters by their names. One without a name must not pass for the model without any."""
        return None if lora_id is None else self._lora_names.get(lora_id, str(lora_id))

    def _group(self, window_size: int | None) -> dict[str, Any]:
        if window_size not in self._groups:
            raise KvfixError(
                f"events: a block of window {window_size}, but Translator was given the windows {list(self._windows)}: "
                "give it the manager's config.window_sizes"
            )
        return self._groups[window_size]

    def _forget_all(self) -> list[dict[str, Any]]:
        """Clear everything: a router that counts on a block that has gone sends requests to the wrong place."""
        self._known.clear()
        return [{"type": "AllBlocksCleared"}]


def groups_of(windows: Sequence[int]) -> dict[int | None, dict[str, Any]]:
    """Fields that describe each window. A router follows full attention alone: here the largest window."""
    groups: dict[int | None, dict[str, Any]] = {}
    for group, size in enumerate(windows):
        full = size == max(windows)
        groups[size] = {
            "group_idx": group,
            "kv_cache_spec_kind": "full_attention" if full else "sliding_window",
            "kv_cache_spec_sliding_window": None if full else size,
        }
    none = {"group_idx": None, "kv_cache_spec_kind": None, "kv_cache_spec_sliding_window": None}
    return groups or {None: none}


def removed(known: Known) -> dict[str, Any]:
    return {"type": "BlockRemoved", **{name: known.message[name] for name in REMOVED}}


def extra_keys(event: BlockEvent) -> list[Any] | None:
    """Further identity of the block: images as (hex digest, offset), and with a prompt's first block the salt."""
    spans: list[Any] = [(digest.hex(), begin) for begin, _, digest in event.extra_keys]
    salt = salt_text(event.salt)
    return spans + ([salt] if salt is not None and event.parent_hash is None else []) or None


def images(event: BlockEvent) -> dict[str, Any] | None:
    """Images as Dynamo wants them: of each digest the first 64 bits, and no offsets, which are no part of its
    hashes."""
    objects = [{"mm_hash": int.from_bytes(digest[:8], "big"), "offsets": []} for _, _, digest in event.extra_keys]
    return {"mm_objects": objects} if objects else None


def salt_text(salt: str | bytes | int | None) -> str | None:
    """Salts are text there. Two that read alike here still have blocks with different hashes."""
    if isinstance(salt, bytes):
        return salt.hex()
    return None if salt is None else str(salt)


def shaped(message: dict[str, Any], shape: Shape) -> Message:
    if shape == "map":
        return message
    names = {"BlockStored": STORED, "BlockRemoved": REMOVED, "AllBlocksCleared": ()}[message["type"]]
    return [message["type"], *(message[name] for name in names)]
