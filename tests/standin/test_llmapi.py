"""Arguments, the server command and the sessions of the stand-in (surface 6.3, 7.1, 7.2)."""

import json
import os
import subprocess
import sys
from concurrent.futures import Future
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.standin.fixture import STANDIN, VARIANTS, upstream

ROOT = STANDIN.parent.parent


def serve(variant: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    environ = {
        **os.environ,
        "STANDIN_VARIANT": variant,
        "TLLM_WORKER_USE_SINGLE_PROCESS": "1",
        "PYTHONPATH": os.pathsep.join((str(STANDIN), str(ROOT))),
    }
    command = [sys.executable, str(STANDIN / "bin/trtllm-serve"), "tiny", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environ)


@pytest.mark.parametrize("variant", VARIANTS)
def test_serve_runs_a_worker_and_reports(variant: str, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump({"disable_overlap_scheduler": True, "kv_cache_config": {"host_cache_size": 2048}}))
    done = serve(variant, "--config", str(config))
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["rank"] == 0
    assert report["steps"] > 0
    assert report["corrupt"] == {"block offsets": 0, "prompt lens": 0}
    assert {len(tokens) for tokens in report["tokens"]} == {4}


def test_a_key_that_upstream_does_not_know_is_refused(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("kvfix: {}\n")
    done = serve("B", "--extra_llm_api_options", str(config))
    assert done.returncode != 0
    assert "LLM got invalid argument: kvfix" in done.stderr


def test_the_file_comes_before_the_options_and_nested_settings_are_checked() -> None:
    with upstream("D"):
        args = import_module("tensorrt_llm.llmapi.llm_args")
        merged = args.update_llm_args_with_extra_dict(
            {"max_batch_size": 8}, {"max_batch_size": 4, "kv_cache_config": {}}
        )
        assert merged["max_batch_size"] == 4
        assert isinstance(merged["kv_cache_config"], args.KvCacheConfig)
        with pytest.raises(ValueError, match="no_such_setting"):
            args.update_llm_args_with_extra_dict({}, {"kv_cache_config": {"no_such_setting": 1}})


@pytest.mark.parametrize("variant", ["B", "D"])
def test_connector_presets_came_late(variant: str) -> None:
    with upstream(variant):
        config = import_module("tensorrt_llm.llmapi.llm_args").KvCacheConnectorConfig
        if variant == "D":
            preset = config(connector="lmcache-mp", server_url="tcp://localhost:5555")
            assert preset.connector_module == "lmcache.integration.tensorrt_llm.tensorrt_mp_adapter"
            assert preset.server_url == "tcp://localhost:5555"
            assert config(connector="kvbm", connector_worker_class="Mine").connector_worker_class == "Mine"
            with pytest.raises(ValueError, match="Known presets"):
                config(connector="mine")
        else:
            with pytest.raises(ValueError, match="Extra inputs"):
                config(connector="lmcache")
        with pytest.raises(ValueError, match="required"):
            config(connector_module="x")


def test_a_server_knows_its_place_among_the_ranks() -> None:
    with upstream("D") as tensorrt_llm:
        args = import_module("tensorrt_llm.llmapi.llm_args").TorchLlmArgs(model="tiny", tensor_parallel_size=2)
        mapping = args.parallel_config.to_mapping()
        assert (mapping.world_size, mapping.rank, mapping.tp_size, mapping.pp_size) == (2, 0, 2, 1)
        assert tensorrt_llm.mpi_rank() == 0 and tensorrt_llm.Mapping is type(mapping)
        tensorrt_llm.logger.info("what connectors call is an object, and no module")


class PoolDouble:
    """Keeps what MPIPoolExecutor was given."""

    def __init__(self, **options: Any) -> None:
        self.options = options

    def submit(self, task: Any, *args: Any) -> "Future[Any]":
        done: Future[Any] = Future()
        done.set_result(task(*args))
        return done

    def shutdown(self, wait: bool) -> None:
        assert wait


def test_workers_get_only_variables_of_upstreams_names(monkeypatch: pytest.MonkeyPatch) -> None:
    with upstream("B"):
        session_module = import_module("tensorrt_llm.llmapi.mpi_session")
        doubles = type(sys)("futures")
        doubles.MPIPoolExecutor = PoolDouble  # type: ignore[attr-defined]
        monkeypatch.setattr(session_module, "futures", doubles)
        for name in ("TRTLLM_ONE", "TLLM_TWO", "PYTHONPATH", "OTHER"):
            monkeypatch.setenv(name, "set")
        session = session_module.MpiPoolSession(2, env_overrides={"OVERRIDE": "set"})
        sent = session.mpi_pool.options["env"]
        assert {"TRTLLM_ONE", "TLLM_TWO", "OVERRIDE"} <= set(sent)
        assert not {"PYTHONPATH", "OTHER"} & set(sent)
        assert session.mpi_pool.options["path"] is sys.path
        assert session.submit_sync(len, "abc") == [3, 3]
        session.shutdown()
