from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_programs import FakePrograms


def test_the_group_explains_itself(scalelab: Callable[..., Any]) -> None:
    for words in (["site"], ["site", "--help"], ["site", "init", "--help"]):
        said = scalelab(*words)
        assert "rofile" in said.out + said.err
    assert "--device-type" in scalelab("site", "init", "--help").out


def test_no_batch_system(
    scalelab: Callable[..., Any], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(here))
    refused = scalelab("site", "init")
    refused.assert_refused(3)
    assert "Neither sinfo nor pbsnodes can be run here." in refused.err
    scalelab("site", "init", "--scheduler", "pbs").assert_refused(3)
    scalelab("site", "init", "--scheduler", "lsf").assert_refused()


@pytest.mark.slow
def test_a_profile_is_written_and_checked(
    scalelab: Callable[..., Any], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{here}")
    programs = FakePrograms(here)
    programs.says("sinfo", "gpu|up|infinite|2|8|6000|gpu:2\n")
    programs.says("scontrol", "ClusterName = tiny AllocNodes=ALL\n")
    written = scalelab("site", "init")
    path = here.with_name("config") / "scalelab" / "sites" / "tiny.yaml"
    assert written.out.splitlines() == [
        f"Wrote {path}: partition gpu, 2 x (8 cores, 6 GiB, 2 GPUs).",
        "Look through it, then: scalelab doctor --site tiny",
    ]
    checked = scalelab("doctor", "--site", "tiny")
    assert checked.code == 3
    assert checked.out.startswith("broken  programs          sbatch, squeue, scancel")
    assert "Sweeps on tiny will fail until what is broken is repaired." in checked.out
    named = scalelab("site", "init", "./mine.yaml", "--device-type", "cpu")
    assert named.out.endswith("doctor --site ./mine.yaml\n")
    assert "request_gpus: true" in Path("mine.yaml").read_text()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--job"], "--job tries a node of a site. Name the site: --site NAME."),
        (["--site", "local"], "there is no batch system to check. Without --site,"),
        (["--site", "absent"], "no site is called 'absent'."),
        (["--site", "./held.yaml", "--job"], "uses one that is held already."),
    ],
)
def test_what_doctor_cannot_check(
    scalelab: Callable[..., Any], here: Path, words: list[str], text: str
) -> None:
    held = "{scheduler: allocation, device_type: cpu, gpus_per_node: 2}"
    Path("held.yaml").write_text(held)
    refused = scalelab("doctor", *words)
    refused.assert_refused()
    assert text in refused.err
