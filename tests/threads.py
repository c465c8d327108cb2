"""Threads of tests: all start at once, the first error of any is raised, a hang is a failure."""

import threading
from collections.abc import Callable
from typing import Any


def run_together(*works: Callable[[], Any], join_s: float = 120) -> None:
    errors: list[BaseException] = []
    barrier = threading.Barrier(len(works))

    def guarded(work: Callable[[], Any]) -> None:
        barrier.wait()
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(join_s)
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"
    if errors:
        raise errors[0]
