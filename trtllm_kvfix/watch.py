"""`trtllm-kvfix watch`: the command of hostrace, a package of its own that knows nothing of this one."""

import click

from trtllm_kvfix.errors import SettingsError

CURE = "pip install hostrace, or ./watch in a checkout"


# Every option is hostrace's, `--help` too, so all of them get the same answer.
@click.command(add_help_option=False, context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def not_installed(arguments: tuple[str, ...]) -> None:  # noqa: ARG001  click's
    raise SettingsError("`watch` needs hostrace, which is not installed: pip install hostrace (in a checkout: ./watch)")


def command() -> click.Command:
    try:
        from hostrace.command import watch  # noqa: PLC0415  an extra
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "hostrace":
            raise
        return not_installed
    return watch


watch = command()
