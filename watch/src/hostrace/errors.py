"""What ends this command before it has watched anything, or without a report: one line, which click prints."""

import click


class HostraceError(click.ClickException):
    exit_code = 2
