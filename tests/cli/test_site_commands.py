from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_programs import FakePrograms
from sentences import Golden


def test_the_group_explains_itself(scalelab: Callable[..., Any]) -> None:
    for words in (["site"], ["site", "--help"], ["site", "init", "--help"]):
        said = scalelab(*words)
        assert "rofile" in said.out + said.err
    assert "--device-type" in scalelab("site", "init", "--help").out


def test_no_batch_system(
    scalelab: Callable[..., Any],
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    golden: Golden,
) -> None:
    monkeypatch.setenv("PATH", str(here))
    refused = scalelab("site", "init")
    refused.assert_refused(3)
    golden(refused.err)
    scalelab("site", "init", "--scheduler", "pbs").assert_refused(3)
    scalelab("site", "init", "--scheduler", "lsf").assert_refused()


@pytest.mark.slow
def test_a_profile_is_written_and_checked(
    scalelab: Callable[..., Any],
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    golden: Golden,
) -> None:
    monkeypatch.setenv("PATH", f"{here}")
    programs = FakePrograms(here)
    programs.says("sinfo", "gpu|up|infinite|2|8|6000|gpu:2\n")
    programs.says("scontrol", "ClusterName = tiny AllocNodes=ALL\n")
    written = scalelab("site", "init")
    golden(*written.out.splitlines())
    checked = scalelab("doctor", "--site", "tiny")
    assert checked.code == 3
    first, *_, last = checked.out.splitlines()
    golden(first, last)
    named = scalelab("site", "init", "./mine.yaml", "--device-type", "cpu")
    golden(named.out)
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
