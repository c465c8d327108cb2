"""Ports for tests that serve something."""

import os
import socket

# Below those that Linux gives out itself. Each worker of pytest has as many of its own: what one has found free,
# another would find free, too, until it is bound.
FIRST, PORTS, WORKERS = 20_000, 2_000, 6
_worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % WORKERS
_next = [os.getpid() * 10 % PORTS]  # behind those that were found last


def free_ports(count: int) -> int:
    """The first of some ports in a row that are free now."""
    for _ in range(2 * PORTS // count):
        begin = _next[0] if _next[0] + count <= PORTS else 0
        _next[0] = begin + count
        sockets = [socket.socket() for _ in range(count)]
        try:
            for offset, each in enumerate(sockets):
                each.bind(("127.0.0.1", FIRST + _worker * PORTS + begin + offset))
        except OSError:
            continue
        else:
            return FIRST + _worker * PORTS + begin
        finally:
            for each in sockets:
                each.close()
    raise RuntimeError("no free ports")
