"""The connector as a user starts it: named in the server's YAML, with its settings beside, below `run`."""

import json
from pathlib import Path

import pytest

from tests.overlay.test_stand_in import below_run
from tests.standin.fixture import VARIANTS

CONFIG = """
kv_connector_config:
  connector_module: trtllm_kvfix.offload
  connector_scheduler_class: KvfixOffloadScheduler
  connector_worker_class: KvfixOffloadWorker
kvfix:
  offload: {{host_bytes: {host_bytes}}}
"""


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_server_runs_with_the_connector_of_its_configuration(variant: str, tmp_path: Path) -> None:
    done = below_run(tmp_path, variant, CONFIG.format(host_bytes="64KiB"))
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["error"] is None and len(report["tokens"]) == 12


def test_a_server_is_told_that_a_block_does_not_fit(tmp_path: Path) -> None:
    done = below_run(tmp_path, "F", CONFIG.format(host_bytes="1B"))
    assert done.returncode != 0
    assert "host_bytes" in done.stderr
