"""A wrong configuration is refused at the start, by the name of the setting."""

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import trtllm_kvfix.offload
from trtllm_kvfix.errors import SettingsError
from trtllm_kvfix.native import open_device
from trtllm_kvfix.offload import KvfixOffloadScheduler, KvfixOffloadWorker
from trtllm_kvfix.offload.host_tier import HostTierMaker
from trtllm_kvfix.offload_section import OffloadSettings
from trtllm_kvfix.ranks import OneRank

from .conftest import MakeBench, llm_args

BLOCK_BYTES = 4096


def maker(root: Path, **settings: Any) -> HostTierMaker:
    return HostTierMaker(OffloadSettings.model_validate({"host_bytes": "128KiB"} | settings), root)


@pytest.mark.parametrize(("node", "is_there"), [(0, True), (1, True), (99, False), (None, True)])
def test_a_numa_node_that_is_not_there_is_refused(node: int | None, is_there: bool, tmp_path: Path) -> None:
    for number in (0, 1):
        (tmp_path / f"sys/devices/system/node/node{number}").mkdir(parents=True)
    make = maker(tmp_path, numa_node=node)
    if is_there:
        assert make(open_device("cpu"), BLOCK_BYTES, OneRank()).slots == 32
    else:
        with pytest.raises(SettingsError, match=r"kvfix.offload.numa_node is 99; this machine has \[0, 1\]"):
            make(open_device("cpu"), BLOCK_BYTES, OneRank())


@pytest.mark.parametrize(("size", "is_said"), [("16384", True), ("5000B", True), ("65MiB", False)])
def test_a_tier_of_a_few_blocks_is_not_built_without_a_word(
    size: str, is_said: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "trtllm_kvfix.offload")
    maker(tmp_path, host_bytes=size)._require_room(BLOCK_BYTES, 1)
    assert any("a number without a unit counts bytes" in line for line in caplog.messages) == is_said


def configured(**names: str) -> Any:
    args = llm_args()
    classes = {
        "connector_module": "trtllm_kvfix.offload",
        "connector_scheduler_class": "KvfixOffloadScheduler",
        "connector_worker_class": "KvfixOffloadWorker",
    }
    args.kv_connector_config = SimpleNamespace(**(classes | names))
    return args


@pytest.mark.parametrize("kind", [KvfixOffloadScheduler, KvfixOffloadWorker])
@pytest.mark.parametrize(
    ("setting", "given", "wanted"),
    [
        ("connector_scheduler_class", "KvfixOffloadWorker", "KvfixOffloadScheduler"),
        ("connector_worker_class", "KvfixOffloadScheduler", "KvfixOffloadWorker"),
    ],
)
def test_swapped_classes_are_refused_by_name(
    kind: Any, setting: str, given: str, wanted: str, make_bench: MakeBench
) -> None:
    make_bench()  # sets host_bytes
    with pytest.raises(SettingsError, match=f"kv_connector_config.{setting} is {given}; write {wanted}"):
        kind(configured(**{setting: given}))


def test_the_right_classes_and_those_of_others_are_taken(make_bench: MakeBench) -> None:
    make_bench()
    KvfixOffloadWorker(configured()).shutdown()
    derived = configured(connector_module="theirs", connector_worker_class="Derived")
    KvfixOffloadWorker(derived).shutdown()


def test_a_class_that_is_not_there_is_answered_with_those_that_are() -> None:
    with pytest.raises(AttributeError, match=r"its connector's classes are .*KvfixOffloadScheduler.*Worker"):
        trtllm_kvfix.offload.KvfixOffloadSchedular  # noqa: B018
