"""Ports for tests that serve something."""

import socket


def free_ports(count: int) -> int:
    """The first of some ports in a row that are free now."""
    for port in range(20_000, 60_000, count):
        sockets = [socket.socket() for _ in range(count)]
        try:
            for offset, each in enumerate(sockets):
                each.bind(("127.0.0.1", port + offset))
        except OSError:
            continue
        else:
            return port
        finally:
            for each in sockets:
                each.close()
    raise RuntimeError("no free ports")
