"""The program: `bellringer`, or `python -m bellringer`."""

import signal


def main() -> None:
    """Run the command line. Ctrl-C while it is still being read in ends the process without a traceback."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from bellringer import cli  # noqa: PLC0415 - this is what takes the time

    signal.signal(signal.SIGINT, signal.default_int_handler)
    cli.main()


if __name__ == "__main__":
    main()
