"""Which manager a server uses is read where it shows, and is unknown where it does not."""

from pathlib import Path

import pytest

from trtllm_kvfix.fixes import ALL
from trtllm_kvfix.fixes.probe_answers import needed
from trtllm_kvfix.overlay.fix import HOST_TIER
from trtllm_kvfix.overlay.upstream import V2_PLACES
from trtllm_kvfix.tools.doctor.server_manager import FILE, SETTING, of_default, of_server

FIXES = {fix.id: fix for fix in ALL}


def upstream(folder: Path, body: str) -> Path:
    file = folder / FILE
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(body)
    return folder


def config(setting: str) -> str:
    return f"class KvCacheConfig(Base):\n    max_tokens: int = 3\n    {SETTING}: bool {setting}\n"


@pytest.mark.parametrize(
    ("body", "name", "said"),
    [
        (config("= False"), "V1", "default manager V1"),
        (config("= True"), "V2", "default manager V2"),
        (config("= Field(default=True, status='prototype')"), "V2", "default manager V2"),
        (config("= Field(False, status='prototype')"), "V1", "default manager V1"),
        (config('= Field(default="auto")'), None, "default manager V1 or V2, as the model chooses"),
        (config("= choose()"), None, "manager unknown, V1 or V2"),
        (config(""), None, "manager unknown, V1 or V2"),
        ("class KvCacheConfig:\n    max_tokens: int = 3\n", "V1", "default manager V1"),
        ("class Other:\n    max_tokens: int = 3\n", None, "manager unknown, V1 or V2"),
        ("class KvCacheConfig(:\n", None, "manager unknown, V1 or V2"),
    ],
)
def test_the_default_is_read_in_upstream_s_source(tmp_path: Path, body: str, name: str | None, said: str) -> None:
    found = of_default(upstream(tmp_path, body))
    assert (found.name, found.said) == (name, said), found.why


def test_a_build_with_v2_and_without_the_setting_is_not_taken_for_v1(tmp_path: Path) -> None:
    """As a later one may be, that has nothing else."""
    package = upstream(tmp_path / "tensorrt_llm", "class KvCacheConfig:\n    max_tokens: int = 3\n")
    module = tmp_path.joinpath(*V2_PLACES[0].split(".")).with_suffix(".py")
    module.parent.mkdir(parents=True)
    module.write_text("class KVCacheManagerV2: ...\n")
    assert of_default(package).name is None


def test_without_the_source_the_manager_is_unknown(tmp_path: Path) -> None:
    found = of_default(tmp_path)
    assert found.name is None and "cannot be read" in found.why


@pytest.mark.parametrize(
    ("text", "name", "said"),
    [
        (f"kv_cache_config: {{{SETTING}: true}}", "V2", "server.yaml's manager V2"),
        (f"kv_cache_config: {{{SETTING}: false}}", "V1", "server.yaml's manager V1"),
        (f"kv_cache_config: {{{SETTING}: auto}}", None, "server.yaml's manager V1 or V2, as the model chooses"),
        (f"kv_cache_config: {{{SETTING}: [1]}}", None, "manager unknown, V1 or V2"),
        ("kv_cache_config: {max_tokens: 3}", "V1", "default manager V1"),
        ("kv_cache_config: 3", "V1", "default manager V1"),
        ("[1, 2]", "V1", "default manager V1"),
    ],
)
@pytest.mark.parametrize("option", ["--config", "--extra-engine-args"])
def test_the_server_s_file_comes_before_the_default(
    tmp_path: Path, text: str, name: str | None, said: str, option: str
) -> None:
    file = tmp_path / "server.yaml"
    file.write_text(text)
    found = of_server(upstream(tmp_path, config("= False")), ["serve", option, str(file)])
    assert (found.name, found.said) == (name, said), found.why


def test_of_several_files_the_last_that_says_it_counts(tmp_path: Path) -> None:
    files = []
    for number, text in enumerate((f"{SETTING}: false", f"{SETTING}: true", "max_tokens: 3")):
        file = tmp_path / f"{number}.yaml"
        file.write_text(f"kv_cache_config: {{{text}}}")
        files.append(str(file))
    assert of_server(upstream(tmp_path, config("= False")), files).name == "V2"


def test_a_fix_for_one_manager_alone_is_needed_where_that_one_may_run(tmp_path: Path) -> None:
    v2 = of_default(upstream(tmp_path, config("= True")))
    needless = {fix.id for fix in ALL if not v2.needs(fix, None)}
    of_v1 = {"staged-offsets-v1", "computed-blocks", "batched-admission", "token-budget", "concurrent-pins"}
    assert needless == of_v1 | {"partial-copies"}
    v1 = of_default(upstream(tmp_path, config("= False")))
    assert [fix.id for fix in ALL if not v1.needs(fix, None)] == ["staged-offsets-v2", "connector-prefixes"]
    unknown = of_default(upstream(tmp_path, ""))
    assert all(unknown.needs(fix, None) for fix in ALL)


@pytest.mark.parametrize(
    ("texts", "has_host_tier"),
    [
        ((), None),
        (("max_batch_size: 8",), None),
        (("kv_cache_config: {max_tokens: 3}",), False),
        (("kv_cache_config: {host_cache_size: 0}",), False),
        (("kv_cache_config: {host_cache_size: 4096}",), True),
        (("kv_cache_config: {host_cache_size: 4096}", "kv_cache_config: {max_tokens: 3}"), True),
        (("kv_cache_config: {host_cache_size: 4096}", "kv_cache_config: {host_cache_size: 0}"), False),
    ],
)
def test_a_host_tier_is_known_where_a_file_speaks_of_the_cache(
    tmp_path: Path, texts: tuple[str, ...], has_host_tier: bool | None
) -> None:
    files = []
    for number, text in enumerate(texts):
        file = tmp_path / f"{number}.yaml"
        file.write_text(text)
        files.append(str(file))
    found = of_server(upstream(tmp_path, config("= False")), files)
    assert found.has_host_tier is has_host_tier
    fix = FIXES["partial-copies"]
    assert found.needs(fix, needed("", only_with=HOST_TIER)) is (has_host_tier is not False)
    assert found.needs(fix, needed(""))
