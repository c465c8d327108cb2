"""Which fixes there are. Each id is a setting below `kvfix.fixes:`, and names a room: fixes/<id>/, with `_` for `-`.

The order is that of application: where two replace the same attribute, the later is outside.
"""

FIX_IDS = (
    "staged-offsets-v1",
    "staged-offsets-v2",
    "computed-blocks",
    "batched-admission",
    "token-budget",
    "concurrent-pins",
    "input-copy-fence",
    "graph-inputs",
    "nixl-listener",
)


def room_of(fix_id: str) -> str:
    """The name of its package below `trtllm_kvfix.fixes`."""
    return fix_id.replace("-", "_")
