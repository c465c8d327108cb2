"""Configurations are checked by their own programs: cibuildwheel's reading of pyproject.toml, hadolint, shellcheck, and
the schemas of Kubernetes. Each is shown to complain. make test-dist installs them."""

import shutil
import subprocess
from pathlib import Path

import pytest

from integration.dist.environments import ROOT

BUILDS = ("cp310", "cp311", "cp312", "cp314t")
MANIFEST = ROOT / "examples" / "kubernetes" / "server.yaml"
DOCKERFILE = ROOT / "examples" / "container" / "Dockerfile"


def run(program: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"needs {program}: pip install 'trtllm-kvfix[dev]'")
    return subprocess.run([found, *arguments], capture_output=True, text=True, check=False, cwd=ROOT)


@pytest.mark.parametrize("arch", ["x86_64", "aarch64"])
def test_one_build_for_each_wheel(arch: str) -> None:
    """The builds themselves need docker."""
    done = run("cibuildwheel", "--platform", "linux", "--archs", arch, "--print-build-identifiers", ".")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [f"{build}-manylinux_{arch}" for build in BUILDS]


@pytest.mark.parametrize(("arch", "builds"), [("x86_64", ["cp312-manylinux_x86_64"]), ("aarch64", [])])
def test_one_build_of_hostrace_for_every_python(arch: str, builds: list[str]) -> None:
    which = ("--platform", "linux", "--archs", arch, "--allow-empty", "--print-build-identifiers")
    done = run("cibuildwheel", *which, "watch")
    assert (done.returncode, done.stdout.split()) == (0, builds), done.stderr


def test_scripts_pass_shellcheck(tmp_path: Path) -> None:
    scripts = [
        *ROOT.glob("tools/*.sh"),
        *ROOT.glob("examples/**/*.sh"),
        *ROOT.glob("integration/dist/*.sh"),
        ROOT / ".ci" / "run",
    ]
    assert len(scripts) > 5
    done = run("shellcheck", *scripts)
    assert done.returncode == 0, done.stdout
    (tmp_path / "wrong.sh").write_text("#!/bin/sh\nrm -r $1/x\n")
    assert run("shellcheck", tmp_path / "wrong.sh").returncode == 1


def test_dockerfile_passes_hadolint(tmp_path: Path) -> None:
    done = run("hadolint", DOCKERFILE)
    assert done.returncode == 0, done.stdout
    (tmp_path / "Dockerfile").write_text("FROM ubuntu\nRUN cd /src && apt-get install gcc\n")
    assert run("hadolint", tmp_path / "Dockerfile").returncode == 1


def test_manifest_fits_the_schemas_of_kubernetes(tmp_path: Path) -> None:
    done = run("kubernetes-validate", "--strict", MANIFEST)
    assert (done.returncode, done.stderr.count(" passed ") + done.stdout.count(" passed ")) == (0, 3), done.stderr
    (tmp_path / "wrong.yaml").write_text(MANIFEST.read_text().replace("livenessProbe:", "livelinessProbe:"))
    assert run("kubernetes-validate", "--strict", tmp_path / "wrong.yaml").returncode != 0
