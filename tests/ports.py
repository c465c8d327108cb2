"""Ports for tests that serve something."""

import os
import socket
from itertools import chain


def free_ports(count: int) -> int:
    """The first of some ports in a row that are free now. Processes that look at once begin in different places."""
    begin = 20_000 + os.getpid() % 1_000 * 10
    for port in chain(range(begin, 32_000, count), range(20_000, begin, count)):
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
