"""The command `hostrace`, also as `python -m hostrace`."""

from hostrace.command import watch


def main() -> None:
    watch(prog_name="hostrace")


if __name__ == "__main__":
    main()
