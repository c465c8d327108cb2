"""The libraries in the wheels call no function that glibc has only since a later version than manylinux_2_28 brings."""

import re
import subprocess
import zipfile
from pathlib import Path

import pytest

from integration.dist.environments import Built

OLDEST = (2, 28)
# The compiler's own libraries and headers take these where the glibc that they are built for has them.
OF_THE_COMPILER = {"__libc_single_threaded", "_dl_find_object", "arc4random", "pthread_cond_clockwait"}


def symbols(library: Path) -> set[tuple[str, tuple[int, ...]]]:
    """Names with the version of glibc that each entry of the dynamic table bears. A name may have several."""
    listed = subprocess.run(["objdump", "-T", library], capture_output=True, text=True, check=True).stdout
    found = re.findall(r"\(?GLIBC_([\d.]+)\)?\s+(\w+)$", listed, re.MULTILINE)
    return {(name, tuple(map(int, version.split(".")))) for version, name in found}


@pytest.mark.parametrize("package", ["built", "built_hostrace"])
def test_no_function_is_newer_than_the_oldest_glibc(
    package: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    built: Built = request.getfixturevalue(package)
    with zipfile.ZipFile(built.wheel) as wheel:
        names = [name for name in wheel.namelist() if name.endswith(".so")]
        wheel.extractall(tmp_path, names)
    assert len(names) == 1
    taken = {name for library in names for name, version in symbols(tmp_path / library) if version > OLDEST}
    # Functions that moved into libc.so.6 bear the version of their move here, and keep their first one in that library.
    libc = subprocess.run(
        ["cc", "-print-file-name=libc.so.6"], capture_output=True, text=True, check=True
    ).stdout.strip()
    older = {name for name, version in symbols(Path(libc)) if version <= OLDEST}
    assert taken - older - OF_THE_COMPILER == set()
