"""The distributions under test, each built once."""

import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from integration.dist.environments import ROOT, Built, clean_environment, uv
from trtllm_kvfix.native import build_info


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The wheel is built out of the sdist, which so is complete, by the script of the images. The tools are those of
    this environment (pip reads `false` as: no isolation), and kernels are as in the extension that is installed here:
    so the two can be compared."""
    folder = tmp_path_factory.mktemp("dist")
    uv("build", "--quiet", "--sdist", "--no-build-isolation", "--python", sys.executable, "--out-dir", folder, ROOT)
    (sdist,) = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    environ = clean_environment(Path(sys.executable).parent, PIP_NO_BUILD_ISOLATION="false")
    kernels = "OFF" if build_info()["kernels"] == "none" else "ON"
    script = folder / sdist.name.removesuffix(".tar.gz") / "examples" / "container" / "build_wheel.sh"
    done = subprocess.run(
        [script, script.parents[2], folder, kernels], capture_output=True, text=True, check=False, env=environ
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = folder.glob("*.whl")
    return Built(sdist, wheel)


@pytest.fixture(scope="session")
def built_hostrace(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The same of hostrace: its wheel comes out of its sdist, which has nothing of the folder around it."""
    folder = tmp_path_factory.mktemp("dist-hostrace")
    how = ("--quiet", "--no-build-isolation", "--python", sys.executable, "--out-dir", folder)
    uv("build", "--sdist", *how, ROOT / "watch")
    (sdist,) = folder.glob("*.tar.gz")
    uv("build", "--wheel", *how, sdist)
    (wheel,) = folder.glob("*.whl")
    return Built(sdist, wheel)
