"""`trtllm-kvfix enable` and `disable`: the persistent hook of one Python environment, a `.pth` file of one line.

Python runs that line at every start. It registers a finder and nothing else (import_hook.py).
"""

import subprocess
import sys
import sysconfig
from pathlib import Path

import click

from trtllm_kvfix.errors import KvfixError, SettingsError
from trtllm_kvfix.settings import ENV_ENABLED

NAME = "trtllm_kvfix_hook.pth"
# The package may be uninstalled while this file stays: then Python starts silently without it.
LINE = (
    "import sys; exec('try:\\n import trtllm_kvfix.overlay.import_hook as hook\\nexcept ImportError:\\n pass\\n"
    "else:\\n hook.install()')\n"
)


def hook_file(site_dir: Path | None = None) -> Path:
    return (site_dir or Path(sysconfig.get_path("purelib"))) / NAME


def write(file: Path) -> bool:
    """Write the file; False if it was there already."""
    try:
        if file.exists() and file.read_text() == LINE:
            return False
        file.write_text(LINE)
    except OSError as error:
        raise SettingsError(
            f"the hook '{file}' cannot be written: {error.strerror or error}; `trtllm-kvfix run -- COMMAND` "
            "needs no hook"
        ) from error
    return True


def remove(file: Path) -> bool:
    """Remove the file; False if there was none."""
    try:
        file.unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise SettingsError(f"the hook '{file}' cannot be removed: {error.strerror or error}") from error
    return True


def is_loaded_by_new_interpreters() -> bool:
    """Start one and ask it, because a file in a folder that Python does not read would change nothing."""
    code = "import sys; print([type(each).__module__ for each in sys.meta_path])"
    asked = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return "trtllm_kvfix.overlay.import_hook" in asked.stdout


@click.command()
def enable() -> None:
    """Install the hook in this Python environment: every TensorRT-LLM that it runs gets the fixes."""
    file = hook_file()
    news = write(file)
    if not is_loaded_by_new_interpreters():
        remove(file)
        raise KvfixError(f"{sys.executable} does not read {file}, so it was removed; is site-packages switched off?")
    click.echo(f"{'installed' if news else 'was installed already'}: {file}")
    click.echo(f"{ENV_ENABLED}=false starts without it, `trtllm-kvfix disable` removes it")


@click.command()
def disable() -> None:
    """Remove the hook from this Python environment; processes that run keep what they have."""
    file = hook_file()
    click.echo(f"removed: {file}" if remove(file) else f"was not installed: {file}")
