"""A server whose logging raises starts, serves and loses a fix without ending."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import fresh
from tests.overlay.upstream_double import environment
from tests.standin.fixture import STANDIN

ROOT = Path(__file__).resolve().parents[2]
FAULTS = ("plain", "no text")

SERVES = """
import logging, sys
hostile, fault, manager = sys.argv[1:4]
ours = logging.getLogger("trtllm_kvfix")

class Refused(Exception):
    pass

class NoText(Exception):
    def __str__(self):
        raise Refused("no text")

class Raises(logging.Handler):
    def emit(self, record):
        record.getMessage()
        raise Refused(record.msg)

class Ends(logging.Handler):
    def emit(self, record):
        sys.exit(3)

def tenant_of(record):
    record.tenant = record.request_id
    return True

def no_record(*args, **kwargs):
    raise Refused("no record")

if hostile == "filter":
    ours.addFilter(tenant_of)
elif hostile == "factory":
    logging.setLogRecordFactory(no_record)
elif hostile != "none":
    ours.addHandler({"handler": Raises, "exit": Ends}[hostile]())
if hostile == "none":
    logging.raiseExceptions = True

import trtllm_kvfix
trtllm_kvfix.enable()
from tests.standin.serving import Server
from trtllm_kvfix.staging import stagers

logging.getLogger("tensorrt_llm").setLevel(logging.CRITICAL)
args = {"max_num_tokens": 48, "kv_cache_config": {"use_kv_cache_manager_v2": manager == "v2"}}
server = Server(args)  # the start logs what is on

def fail(self, *args):
    raise {"plain": ValueError("planted"), "no text": NoText()}[fault]

stagers.Stagers.of = stagers.Stagers.of_lasting = fail
with server.stall():
    answers = server.serve(server.workload(24))
fix = "staged-offsets-" + manager
print(sum(1 for each in answers if each.error_msg is None), len(server.witness.corrupt("block offsets")),
      trtllm_kvfix.status()["fixes"][fix]["word"])
"""


def serve(folder: Path, variant: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    variables = environment(STANDIN, STANDIN_VARIANT=variant) | {"TRTLLM_KVFIX_RUNTIME_DIR": str(folder / "run")}
    variables["PYTHONPATH"] += os.pathsep + str(ROOT)
    command = [sys.executable, "-c", SERVES, *arguments]
    return fresh.run(command, cwd=ROOT, env=variables)


CASES = [
    *((hostile, "C", "v1", fault) for hostile in ("none", "filter", "handler", "exit", "factory") for fault in FAULTS),
    ("filter", "B", "v2", "no text"),
    ("handler", "C", "v2", "no text"),
]


@pytest.mark.parametrize(("hostile", "variant", "manager", "fault"), CASES)
def test_a_fault_under_hostile_logging_ends_nothing(
    tmp_path: Path, hostile: str, variant: str, manager: str, fault: str
) -> None:
    done = serve(tmp_path, variant, hostile, fault, manager)
    assert done.stdout.splitlines()[-1:] == ["24 0 stood-down"], done.stdout + done.stderr
    assert "stands down" in done.stderr, "the line goes to standard error where the log does not take it"
