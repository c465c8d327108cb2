"""Pictures that commands draw. matplotlib is an extra, so it is looked for before the work and used after."""

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from trtllm_kvfix.errors import SettingsError
from trtllm_kvfix.written import check_folder, say_written, unwritable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg")


def check_plot(path: Path) -> None:
    if path.suffix.lower() not in SUFFIXES:
        raise SettingsError(f"--plot is {path}: the file name ends in {' or '.join(SUFFIXES)}")
    check_folder("--plot", path)
    if find_spec("matplotlib") is None:
        raise SettingsError("--plot needs matplotlib, which is not installed: pip install 'trtllm-kvfix[report]'")


def save(figure: "Figure", path: Path) -> None:
    try:
        figure.savefig(path)
    except OSError as error:
        raise unwritable("--plot", path, error) from error
    say_written(path)
