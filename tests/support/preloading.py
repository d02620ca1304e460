"""Small libraries that change what system calls of a process do; preloaded."""

from __future__ import annotations

import subprocess
from pathlib import Path


def compiled(name: str, compiler: str, folder: Path) -> Path:
    """Return the library of the C file of this name beside this module."""
    library = folder / f"{name}.so"
    source = Path(__file__).with_name(f"{name}.c")
    flags = ["-shared", "-fPIC", "-O2", "-Wall", "-Werror"]
    subprocess.run([compiler, *flags, "-o", library, source, "-ldl"], check=True)
    return library
