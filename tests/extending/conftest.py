"""An environment of its own into which a distribution from outside is installed."""

import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

import scalelab

TOY = Path(__file__).with_name("toy")
REPOSITORY = Path(scalelab.__file__).parents[1]

Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the programs of an environment that has ScaleLab and the toy distribution.

    It sees the packages of the environment that runs the tests, torch among them, and
    alone has the toy: a sweep started by another interpreter does not find it.
    """
    environment = tmp_path_factory.mktemp("outside") / "env"
    venv.create(environment, with_pip=False)
    programs = environment / "bin"
    version = f"python{sysconfig.get_python_version()}"
    installed = [path for path in sys.path if path.endswith("site-packages")]
    shared = [str(REPOSITORY), *installed]
    packages = environment / "lib" / version / "site-packages"
    (packages / "shared.pth").write_text("\n".join(shared) + "\n")
    build = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]
    offline = ["--no-index", "--no-deps", "--quiet"]
    wheel = ["wheel", "--no-build-isolation", "--wheel-dir", str(build), str(TOY)]
    subprocess.run([*pip, *wheel, *offline], check=True)
    (built,) = build.glob("*.whl")
    target = ["--python", str(programs / "python"), "install", str(built)]
    subprocess.run([*pip, *target, *offline], check=True)
    return programs


@pytest.fixture
def run_outside(outside: Path, tmp_path: Path) -> Command:
    """Run a program of that environment in an empty folder."""

    def run(*words: str, **options: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(outside / "python"), "-m", *words],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=240,
            **options,
        )

    return run
