"""Engines whose blocks may differ never share names, and others do: by the arguments that they were started with."""

import enum
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import BaseModel

from trtllm_kvfix.errors import SettingsError
from trtllm_kvfix.offload.remote.keys import root_of
from trtllm_kvfix.offload.remote.model import parts_of
from trtllm_kvfix.offload_section import RemoteSettings

ROOT = Path(__file__).resolve().parents[3]


class LoadFormat(enum.Enum):
    AUTO = 0
    DUMMY = 1


class Loader:
    """As upstream takes it: an object that loads what it likes."""


class Draft(BaseModel):
    layers: int = 1
    model: str | None = None


@dataclass
class Quantization:
    algorithm: str | None = None


def root(cache: Any = None, **arguments: Any) -> bytes:
    given = {"kv_cache_config": SimpleNamespace(tokens_per_block=32, **(cache or {})), "load_format": LoadFormat.AUTO}
    return root_of(parts_of(SimpleNamespace(**given | arguments), RemoteSettings(model="x")))


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("load_format", LoadFormat.DUMMY), ("checkpoint_format", "mine"), ("checkpoint_loader", Loader()),
        ("dtype", "float16"), ("quant_config", Quantization("FP8")), ("model_kwargs", {"num_hidden_layers": 1}),
        ("attn_backend", "FLASHINFER"), ("tensor_parallel_size", 2), ("moe_expert_parallel_size", 2),
        ("speculative_config", Draft(layers=2)), ("lora_config", {"lora_dir": ["a"]}), ("revision", "v2"),
        ("env_overrides", {"TLLM_OVERRIDE_LAYER_NUM": "1"}), ("sparse_attention_config", {"algorithm": "dsa"}),
        ("an_argument_of_a_later_release", True),
    ],
)  # fmt: skip
def test_an_argument_that_may_change_blocks_keeps_engines_apart(argument: str, value: Any) -> None:
    assert root(**{argument: value}) != root(**{argument: None})
    assert root(**{argument: value}) == root(**{argument: value})


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("max_batch_size", 7), ("cuda_graph_config", {"max_batch_size": 7}), ("gpus_per_node", 7), ("model", "/b"),
        ("mpi_session", object()), ("tokenizer", object()), ("scheduler_config", {"policy": "x"}),
    ],
)  # fmt: skip
def test_an_argument_that_changes_no_block_does_not(argument: str, value: Any) -> None:
    assert root(**{argument: value}) == root(**{argument: None})


def test_arguments_of_the_cache_count_alike() -> None:
    assert root({"dtype": "fp8"}) != root({"dtype": "auto"})
    assert root({"max_attention_window": [64]}) != root({"max_attention_window": None})
    assert root({"an_argument_of_a_later_release": 1}) != root({"an_argument_of_a_later_release": 2})
    assert root({"host_cache_size": 1, "max_tokens": 1}) == root({"host_cache_size": 2, "max_tokens": 2})


def test_an_object_needs_a_name_for_what_it_loads() -> None:
    given = SimpleNamespace(kv_cache_config=SimpleNamespace(), checkpoint_loader=Loader())
    with pytest.raises(SettingsError, match=r"remote\.model is not set, and checkpoint_loader is an object"):
        parts_of(given, RemoteSettings())
    assert parts_of(given, RemoteSettings(model="x"))["checkpoint_loader"].endswith("test_arguments.Loader")


SPELLS = """
from pathlib import Path
from types import SimpleNamespace
from tests.offload.remote.test_arguments import Draft, LoadFormat, Quantization
from trtllm_kvfix.offload.remote import arguments
nested = {name: {name, "x", "y"} for name in ("a", "b", "c")}
given = SimpleNamespace(kv_cache_config=SimpleNamespace(), load_format=LoadFormat.AUTO, model_kwargs=nested,
    speculative_config=Draft(model="d"), quant_config=Quantization(),
    lora_config={Path("/a"): (1, None), int: frozenset("xy")})
print(arguments.of_engine(given, opaque=False))
"""


def test_each_process_spells_them_alike() -> None:
    """Sets have an order of their own in each."""
    said = set()
    for seed in "123":
        variables = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-c", SPELLS]
        said.add(subprocess.run(command, capture_output=True, text=True, check=True, env=variables).stdout)
    (one,) = said
    assert "'load_format': 'AUTO'" in one and "list('/a', list(1, None))" in one and "list(int" not in one


def test_the_order_of_a_mapping_does_not_count() -> None:
    assert root(model_kwargs={"a": 1, "b": 2}) == root(model_kwargs={"b": 2, "a": 1})
    assert root(model_kwargs={"a": 1, "b": 2}) != root(model_kwargs={"a": 2, "b": 1})
    assert root(lora_config=PurePosixPath("/a")) == root(lora_config="/a")
