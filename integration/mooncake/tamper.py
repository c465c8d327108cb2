"""tamper.py MOONCAKE MASTER METRICS flip|swap|remove [NAME]: change every block there, or the one of that name."""

import os
import sys
import urllib.request
from typing import Any

MOONCAKE, MASTER, METRICS, HOW, *CHOSEN = sys.argv[1:]
sys.path.append(MOONCAKE)


def names_of(metrics: str) -> list[str]:
    with urllib.request.urlopen(f"http://{metrics}/get_all_keys") as answer:
        names: list[str] = sorted(answer.read().decode().split())
    assert names
    return names


def contents_instead(store: Any, names: list[str]) -> list[bytes]:
    contents = [bytearray(store.get(name)) for name in names]
    if HOW == "swap":  # each has what the next one had
        return [bytes(content) for content in (*contents[1:], contents[0])]
    for content in contents:
        content[len(content) // 3] ^= 4
    return [bytes(content) for content in contents]


def main() -> None:
    from mooncake.store import MooncakeDistributedStore  # noqa: PLC0415  from the folder that was named

    store = MooncakeDistributedStore()
    assert store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 16 << 20, "tcp", "", MASTER) == 0
    names = CHOSEN or names_of(METRICS)
    contents = [] if HOW == "remove" else contents_instead(store, names)
    assert [store.remove(name, True) for name in names] == [0] * len(names)
    assert [store.put(name, content) for name, content in zip(names, contents, strict=False)] == [0] * len(contents)


if __name__ == "__main__":
    main()
    os._exit(0)  # a client that is let go of waits for others
