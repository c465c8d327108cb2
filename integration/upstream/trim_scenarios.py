"""Launches that are torn once, with the step-prologue trim on, off and in its own check."""

import os
from collections.abc import Callable
from importlib import import_module

from integration.upstream.arrivals import Arrival
from integration.upstream.launch_filter import STEP_PROLOGUE_TRIM
from integration.upstream.scenarios import PLAIN, STAGING_V2, Scenario, prompt
from integration.upstream.server import Server

TWO = (Arrival(1, prompt(0, 10), 5), Arrival(2, prompt(100, 10), 5))


def trimming() -> list[Scenario]:
    return [
        _of("trim-off-index", "0", "v2-trim"),
        _of("trim-index", "1", "v2-trim"),
        _of("trim-verify-index", "verify", "v2-trim"),
        _of("trim-off-rewritten", "0", "v2-trim-rewritten"),
        _of("trim-rewritten", "1", "v2-trim-rewritten"),
        _of("trim-verify-rewritten", "verify", "v2-trim-rewritten"),
        # The executor waits for the copies, since the engine can tell when they have been made.
        _of("trim-awaited", "1", "v2-trim-awaited", hazard=False),
        _of("trim-verify-awaited", "verify", "v2-trim-awaited", hazard=False),
    ]


def _of(name: str, mode: str, kind: str, *, hazard: bool = True) -> Scenario:
    return Scenario(name, STAGING_V2, hazard, PLAIN, TWO, kind=kind, eras=("O",), prepare=in_mode(mode))


def in_mode(mode: str) -> Callable[[Server], None]:
    def prepare(server: Server) -> None:
        del server
        os.environ["TRTLLM_STEP_PROLOGUE_TRIM"] = mode
        import_module(STEP_PROLOGUE_TRIM).reload_mode()

    return prepare
