"""Races and reports that nobody saw, for tests of what is made of them."""

from typing import Any

from hostrace.races import NUMBERS, Frame, Race, Stack
from hostrace.report import Report


def made_race(**other: Any) -> Race:
    given: dict[str, Any] = {
        "grade": "race",
        "touch": "write",
        "how": "",
        "use": "copy",
        "device": "reads",
        "begin": 0x7FBC3CA89000,
        "bytes": 65_536,
        "at": 20_000,
        "width": 65_536,
        "rows": 1,
        "stream": 0x55700C1DB960,
        "age_us": 98.0,
        "since_us": 3_204_511.0,
        "use_thread": 10_628,
        "touch_thread": 10_640,
        "thread_name": "python",
        "pinned_stack": Stack((), ()),
        "use_stack": Stack((Frame("serve.py", 41, "ship"),), (Frame("", None, "", "libtorch_cuda.so", 0x17ABB3B),)),
        "touch_stack": Stack((Frame("serve.py", 63, "next_step"),), ()),
        "times": 5,
        "pids": [77],
    }
    return Race(**{**given, **other})


def made_report(*, races: tuple[Race, ...] = (), guarded: int = 6, **other: Any) -> Report:
    given: dict[str, Any] = {
        "command": ["serve"],
        "status": 0,
        "held": False,
        **{name: [] for name in ("unordered", "possible", "suppressed", "notes")},
        "numbers": {**dict.fromkeys(NUMBERS, 0), "guarded": guarded},
        "processes": 1,
        "refused": 0,
    }
    return Report(**{**given, "races": list(races), **other})
