"""Runs in each interpreter: what the library reads of its frames is what the interpreter says of them itself.

No import of ours: it runs where nothing of ours is installed.
"""

import asyncio
import contextlib
import ctypes
import functools
import json
import sys
import threading
from collections.abc import Iterator
from typing import Any

LIBRARY = ctypes.PyDLL(sys.argv[1])
LIBRARY.own_state.restype = ctypes.c_void_p
LIBRARY.print_frames.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int]
ROOM = ctypes.create_string_buffer(1 << 16)
checked: list[int] = []


def walk(frame: Any) -> list[list[object]]:
    found = []
    while frame is not None:
        found.append([frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name])
        frame = frame.f_back
    return found


def printed(size: int) -> list[list[object]]:
    frames: list[list[object]] = json.loads(f"[{ROOM.raw[:size].decode('ascii')}]")
    return frames


def here(*_: object) -> int:
    own = LIBRARY.own_state()
    # One line: the line of this frame, too, has to be the same for both.
    size, want = LIBRARY.print_frames(own, ROOM, len(ROOM)), walk(sys._getframe())
    got = printed(size)
    assert got == want, f"{got} but {want}"
    checked.append(len(want))
    return 0


def deep(depth: int) -> int:
    if depth:
        return deep(
            depth - 1,
        )
    return here()


def generated() -> Iterator[object]:
    yield here()
    yield (
        1,
        here(),
    )


@functools.lru_cache
def decorated(_value: int) -> int:
    return here()


class Body:
    at_class = here()

    def __getattr__(self, name: str) -> int:
        return here()

    def __lt__(self, other: object) -> bool:
        here()
        return False


async def waits() -> None:
    await asyncio.sleep(0)
    here()


@contextlib.contextmanager
def managed() -> Iterator[None]:
    here()
    try:
        yield
    finally:
        here()


def fails() -> None:
    try:
        raise ValueError
    except ValueError:
        here()
    finally:
        here()


deep(5)
list(generated())
decorated(1)
_ = Body().missing
sorted([Body(), Body()])
sorted([2, 1], key=here)
sorted([1], key=lambda _: here())
[here() for _ in range(2)]
asyncio.run(waits())
with managed():
    here()
fails()
call = "    return (\n" + "\n" * 200 + "        here(\n        )\n    )\n"
far = "\n" * 700 + "def far_away():\n" + "\n" * 300 + call + "far_away()"
for name in ("<far>", "<größer>", "<наверх>", "<上>", "<\U0001f40d>", '"\\<\t>'):
    exec(compile(far.replace("far_away", "наверх"), name, "exec"))
thread = threading.Thread(target=deep, args=(3,))
thread.start()
thread.join()
assert len(checked) == 25, checked

# Another thread's, while it waits; and what is no thread's at all.
states: list[int] = []
begun, done = threading.Event(), threading.Event()


def waiting() -> None:
    states.append(LIBRARY.own_state())
    begun.set()
    done.wait()


thread = threading.Thread(target=waiting)
thread.start()
begun.wait()
lines = printed(LIBRARY.print_frames(states[0], ROOM, len(ROOM)))
done.set()
thread.join()
assert any(function == "waiting" for _, _, function in lines), lines
for nowhere in (8, states[0], ctypes.addressof(ROOM)):
    LIBRARY.print_frames(nowhere, ROOM, len(ROOM))
sys.stdout.write("as the interpreter says\n")
