"""Where the installed commands and ``python -m scalelab`` start.

Loading the command line takes a moment, and a Ctrl-C in it shall show no traceback: it
ends the process as it ends other programs. ``scalelab.cli.main`` then takes it over.
"""

import signal
from typing import NoReturn


def main(*words: str) -> NoReturn:
    """Run ``scalelab``, with words before those of its command line, and exit."""
    # A shell's background jobs ignore it, and go on to do so.
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from scalelab.cli.main import main

    main(*words)


def recommend_resources() -> NoReturn:
    """Run ``recommend-resources``, the same as ``scalelab recommend``, and exit."""
    main("recommend")


if __name__ == "__main__":
    main()
