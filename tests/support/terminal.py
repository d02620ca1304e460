"""A terminal that a test looks at and types into."""

import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time

PATIENCE_S = 100


class Terminal:
    """A terminal of some width in which one program runs."""

    def __init__(self, columns: int) -> None:
        self.ours, self.theirs = pty.openpty()
        self.text = ""
        os.set_blocking(self.ours, False)
        size = struct.pack("HHHH", 24, columns, 0, 0)
        fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, size)

    @property
    def ends(self) -> dict[str, int]:
        """Where a program's streams go, as ``Popen`` names them."""
        return dict.fromkeys(("stdin", "stdout", "stderr"), self.theirs)

    def read_until(
        self, process: subprocess.Popen[str], text: str | None = None
    ) -> str:
        """Read until the program ends, or says something."""
        deadline = time.monotonic() + PATIENCE_S
        while text is None or text not in self.text:
            assert time.monotonic() < deadline, self.text
            if select.select([self.ours], [], [], 0.1)[0]:
                try:
                    self.text += os.read(self.ours, 65536).decode()
                except (BlockingIOError, OSError):
                    break
            elif process.poll() is not None:
                break
        return self.text

    def write(self, text: str) -> None:
        os.write(self.ours, text.encode())

    def close(self) -> None:
        os.close(self.ours)
        os.close(self.theirs)
