"""The ids of all fixes. Each is a setting below `kvfix.fixes:`, and names a room: fixes/<id>/, with `_` for `-`.

The order is that of application: where two replace the same attribute, the later is outside.
"""

FIX_IDS = (
    "staged-offsets-v1",
    "staged-offsets-v2",
    "computed-blocks",
    "connector-prefixes",
    "partial-copies",
    "batched-admission",
    "token-budget",
    "concurrent-pins",
    "input-copy-fence",
    "graph-inputs",
    "nixl-listener",
)

# Those that refuse the choice `observe`, and why. Their records have no `counting_replacements`.
BLIND = {
    "computed-blocks": "only changing what is stored shows whether a store is early",
    "concurrent-pins": "a fix knows which thread is inside the manager only while it makes the others wait",
    "nixl-listener": "another process holds the port, and nothing in this one shows it",
}


def room_of(fix_id: str) -> str:
    """The name of its package below `trtllm_kvfix.fixes`."""
    return fix_id.replace("-", "_")
