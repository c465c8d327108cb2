"""KVBM 1.6.1, LMCache 0.5.6 and ours below the stand-in and below upstream's own source, with the overlay off and on:
the same calls, the same bytes.

Needs both wheels, NIXL for KVBM, torch (for CPUs is enough) and a C compiler; `make test-clients` fetches what pip can
fetch. No GPU: the driver and torch.cuda are doubles, over memory that is really copied.
"""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from integration.clients.clients import CLIENTS, LAYERS, TOKENS_PER_BLOCK
from integration.clients.stand_in import DEVICE_BLOCKS
from tests.ports import free_ports

ROOT = Path(__file__).resolve().parents[2]
WHEELS = ROOT / "build" / "clients"
pytestmark = pytest.mark.skipif(
    not (WHEELS / "kvbm").is_dir(), reason="needs build/clients: make test-clients fetches it"
)

STAND_IN = ("B", "C", "D", "F")
ON_UPSTREAM = ("S", "B2", "D")  # N has no loop here, and two layer groups, which theirs cannot serve
SCENES = ("turns", "salted", "adapted", "whole")
TIMEOUT_S = 900
Report = dict[str, Any]


def trees() -> dict[str, Path]:
    """Trees of upstream's source, by variant: a checkout, or the assembled excerpts of each era."""
    if checkout := os.environ.get("UPSTREAM"):
        return {f"upstream-{os.environ.get('UPSTREAM_ERA', 'D')}": Path(checkout).resolve()}
    cache = os.environ.get("KVFIX_UPSTREAM")
    found = {f"upstream-{era}": Path(cache) / "trees" / era for era in ON_UPSTREAM} if cache else {}
    return {name: tree for name, tree in found.items() if tree.is_dir()}


TREES = trees()
VARIANTS = (*STAND_IN, *TREES)


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("driver") / "libcuda.so"
    source = Path(__file__).with_name("driver.c")
    compiler = os.environ.get("CC", "cc")
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-pthread", "-Wl,-soname,libcuda.so", "-o", library, source], check=True
    )
    return library


@cache
def seen(
    client: str, variant: str, overlay: bool, scenes: tuple[str, ...], driver: Path, options: tuple[str, ...] = ()
) -> Report:
    """Each pair of runs serves several tests."""
    ports = free_ports(3)
    environ = os.environ | CLIENTS[client].variables
    environ |= {
        "PYTHONPATH": os.pathsep.join(map(str, (WHEELS, ROOT))),
        "LD_PRELOAD": str(driver),
        "LD_LIBRARY_PATH": str(driver.parent),
        "DYN_KVBM_LEADER_ZMQ_PUB_PORT": str(ports),
        "DYN_KVBM_LEADER_ZMQ_ACK_PORT": str(ports + 1),
    }
    asked = [client, variant.removeprefix("upstream-"), *scenes, *(["--overlay"] if overlay else []), *options]
    if variant in TREES:
        asked += ["--tree", str(TREES[variant])]
    done = subprocess.run(
        [sys.executable, "-m", "integration.clients.session", *asked],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=environ,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    report: Report = json.loads(done.stdout.splitlines()[-1])
    return report


def matched(report: Report) -> dict[str, int]:
    """Tokens that the client offered the last request of each scene."""
    return {name: list(scene["matched"].values())[-1] for name, scene in report["scenes"].items()}


def changed(off: Report, on: Report) -> list[str]:
    """Scenes whose calls or corrupt reads differ. Each waits for the saves of a request before the next one comes, so
    no call depends on how fast a client's own threads are."""
    of_both = ((name, off["scenes"][name], scene) for name, scene in on["scenes"].items())
    return [name for name, was, now in of_both if any(was[what] != now[what] for what in ("calls", "corrupt"))]


# The tokens that each offers where the first request of a scene has left 14 tokens and 4 more, of `whole` 16 and 4.
# LMCache keeps blocks of the prompt alone. Neither it nor KVBM asks who a request is for.
OFFERED = {
    "kvbm": {"turns": 16, "salted": 12, "adapted": 12, "whole": 12},
    "lmcache": {"turns": 12, "salted": 12, "adapted": 12, "whole": 16},
    "ours": {"turns": 16, "salted": 0, "adapted": 0, "whole": 12},
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("client", CLIENTS)
class TestClient:
    def test_the_overlay_changes_no_call(self, client: str, variant: str, driver: Path) -> None:
        off, on = (seen(client, variant, overlay, SCENES, driver) for overlay in (False, True))
        assert "applied" in on["fixes"].values() and off["fixes"] == {}
        assert changed(off, on) == []

    def test_a_changed_call_is_noticed(self, client: str, variant: str, driver: Path) -> None:
        off = seen(client, variant, False, SCENES, driver)
        assert changed(off, seen(client, variant, True, SCENES[:1], driver, ("--plant",))) == ["turns"]

    @pytest.mark.parametrize("overlay", [False, True])
    def test_it_offers_what_it_keeps(self, client: str, variant: str, driver: Path, overlay: bool) -> None:
        report = seen(client, variant, overlay, SCENES, driver)
        assert matched(report) == OFFERED[client]
        numbers = 2 * TOKENS_PER_BLOCK if variant in TREES else TOKENS_PER_BLOCK  # of two bytes, of four
        assert report["pool"] == [DEVICE_BLOCKS, LAYERS, 2, numbers]

    @pytest.mark.parametrize("overlay", [False, True])
    def test_what_it_brings_back_is_what_was_computed(
        self, client: str, variant: str, driver: Path, overlay: bool
    ) -> None:
        """Except with an adapter: clients that ignore it bring keys and values of the base model."""
        scenes = seen(client, variant, overlay, SCENES, driver)["scenes"]
        assert {name: scene["corrupt"] for name, scene in scenes.items() if name != "adapted"} == {
            name: [] for name in SCENES if name != "adapted"
        }
        assert bool(scenes["adapted"]["corrupt"]) == (OFFERED[client]["adapted"] > 0)

    @pytest.mark.parametrize("overlay", [False, True])
    def test_it_holds_nothing_of_requests_that_have_ended(
        self, client: str, variant: str, driver: Path, overlay: bool
    ) -> None:
        report = seen(client, variant, overlay, SCENES, driver)
        if client == "lmcache":
            # It offers the whole prompt, which ends the executor: upstream refuses a request with nothing to compute.
            assert "prepopulated length must be less than the prompt's" in report["scenes"]["whole"]["error"]
            report = seen(client, variant, overlay, SCENES[:-1], driver)
        assert {name: scene["error"] for name, scene in report["scenes"].items()} == dict.fromkeys(report["scenes"])
        assert report["held"] == {"client": 0, "manager": 0, "device": 0}


@pytest.mark.parametrize("variant", VARIANTS)
def test_no_call_depends_on_how_fast_kvbm_saves(variant: str, driver: Path) -> None:
    """Nothing is saved when a request has ended, all is saved when the next one comes."""
    late = seen("kvbm", variant, True, SCENES, driver, ("--late",))
    assert set(late["offered_early"][:1]) == {0}, "a request had saves before they were let go: nothing was held"
    assert changed(seen("kvbm", variant, False, SCENES, driver), late) == []


@pytest.mark.skipif(bool(TREES), reason="a tree of upstream is there")
def test_no_tree_of_upstream_is_there() -> None:
    pytest.skip("set KVFIX_UPSTREAM to assembled trees, or UPSTREAM to a checkout of TensorRT-LLM")


@pytest.mark.parametrize("variant", STAND_IN)
def test_a_load_of_lmcache_overtakes_the_step_in_flight_and_ours_waits(variant: str, driver: Path) -> None:
    """LMCache's stream for loads never waits for the step. This shows nothing about KVBM, because the double waits
    in its place.
    """
    theirs = seen("lmcache", variant, True, ("overtaken",), driver)["scenes"]["overtaken"]
    ours = seen("ours", variant, True, ("overtaken",), driver)["scenes"]["overtaken"]
    assert (theirs["error"], ours["error"]) == (None, None)
    assert theirs["matched"]["42"] == ours["matched"]["42"] == 12
    assert theirs["corrupt"] and not ours["corrupt"]
