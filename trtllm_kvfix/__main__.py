"""The command `trtllm-kvfix`, also as `python -m trtllm_kvfix`."""

import sys


def main() -> None:
    """Ctrl-C may come while the command line is imported, which takes a tenth of a second."""
    try:
        from trtllm_kvfix.cli import main as command  # noqa: PLC0415
    except KeyboardInterrupt:
        from trtllm_kvfix.errors import EXIT_INTERRUPTED  # noqa: PLC0415

        sys.stderr.write("Interrupted.\n")
        sys.exit(EXIT_INTERRUPTED)
    command()


if __name__ == "__main__":
    main()
