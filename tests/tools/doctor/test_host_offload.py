"""Upstream's own host tier is warned of where its C++ is wrong and a server uses it, and nowhere else."""

from pathlib import Path

import pytest

from trtllm_kvfix.overlay.fix import Manager
from trtllm_kvfix.tools.doctor.server_manager import ServerManager, host_tier_warning

TIER = "kv_cache_config: {host_cache_size: 4096}\n"


@pytest.mark.parametrize(
    ("version", "name", "text", "warns"),
    [
        ("1.2.1", "V1", TIER, True),
        ("1.3.0rc13", "V1", TIER, True),
        ("1.3.0rc13.post1", None, TIER, True),
        ("1.3.0rc14", "V1", TIER, False),
        ("1.4.0rc4", "V1", TIER, False),
        ("1.3.0rc13", "V2", TIER, False),
        ("1.2.1", "V1", "kv_cache_config: {host_cache_size: 0}\n", False),
        ("1.2.1", "V1", "kv_cache_config: {host_cache_size: lots}\n", False),
        ("1.2.1", "V1", "kv_cache_config: 7\n", False),
        ("1.2.1", "V1", "max_batch_size: 8\n", False),
        (None, "V1", TIER, False),
    ],
)
def test_it_warns_by_version_manager_and_setting(
    tmp_path: Path, version: str | None, name: Manager | None, text: str, warns: bool
) -> None:
    file = tmp_path / "server.yaml"
    file.write_text(text)
    said = host_tier_warning(version, ServerManager(name, "", ""), ["trtllm-serve", "--config", str(file)])
    assert bool(said) == warns
    if warns:
        assert (
            "server.yaml sets host_cache_size: 4096" in said and "1.3.0rc14" in said and "our offload connector" in said
        )
