"""The first screen of a report in a real browser: what it holds, who can use it."""

import json
import re
import shlex
import subprocess
import tarfile
from collections.abc import Callable
from functools import cache
from html import unescape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from five_outputs import OUTPUTS, five_runs

import scalelab
from scalelab.cli import main
from scalelab.inputs.numerals import duration, probability

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(300)]

REPETITION = pytest.mark.repetition
DESKTOP, PHONE = (1280, 800), (390, 844)
AXE = "axe-core@4.14.1"
PARTS = ("headline", "tiles", "why", "grounds", "next")
# Says where each part of the answer ends, and how wide the page is.
PROBE = """<script>
  const ends = {};
  for (const part of %s.concat(["picture svg"])) {
    const found = [...document.querySelectorAll(`.${part}`)].pop();
    ends[part] = found ? found.getBoundingClientRect().bottom : null;
  }
  ends.wide = document.documentElement.scrollWidth - innerWidth;
  parent.postMessage(JSON.stringify(ends), "*");
</script>"""
CHECK = """<script>%s</script><script>
  axe.run(document).then((found) => parent.postMessage(JSON.stringify(
    found.violations.map((each) => [each.id, each.nodes.map((node) => node.html)])
  ), "*"));
</script>"""
# Moves the limits of "What if" at random; says what is chosen then, and the command.
MOVES = """<script>
  let seed = %d;
  const random = () => (seed = (seed * 48271) %% 2147483647) / 2147483647;
  const box = document.querySelector(".what-if"), found = [];
  const [deadline, budget, price] = box.querySelectorAll("input");
  const confidence = box.querySelector("select");
  for (let move = 0; move < %d; move++) {
    for (const slider of [deadline, budget]) {
      slider.value = random() < 0.15 ? slider.max : Math.floor(slider.max * random());
    }
    price.value = random() < 0.4 ? "" : (10 * random()).toPrecision(3);
    confidence.selectedIndex = Math.floor(confidence.length * random());
    for (const input of [deadline, budget, price, confidence]) {
      input.dispatchEvent(new Event("input"));
    }
    const chosen = document.querySelector(".point.chosen text").textContent;
    const [then, command] = box.querySelectorAll(".then, pre");
    found.push([then.textContent, command.textContent, chosen]);
  }
  parent.postMessage(JSON.stringify(found), "*");
</script>"""
# Picks each part in turn; says its headline, and what is drawn of it.
PICKS = """<script>
  const names = document.querySelector(".picker select"), found = [];
  for (const option of names.options) {
    names.value = option.value;
    names.dispatchEvent(new Event("input"));
    const shown = document.querySelectorAll(".part:not([hidden])");
    const [part] = shown, drawn = part.querySelectorAll(".plot svg.main-svg").length;
    const move = part.querySelector(".what-if input");
    move.dispatchEvent(new Event("input"));
    const command = part.querySelector(".what-if pre").textContent;
    found.push([option.value, shown.length, part.innerText, drawn, command]);
  }
  parent.postMessage(JSON.stringify(found), "*");
</script>"""
DARK, PAPER = "@media (prefers-color-scheme: dark)", "@media print"
LOOKS = {
    "desktop": (DESKTOP, ""),
    "phone": (PHONE, ""),
    "dark": (DESKTOP, DARK),
    "print": (DESKTOP, PAPER),
}
See = Callable[..., Any]


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The five outputs as reports: ``digits.html`` and so on."""
    here = tmp_path_factory.mktemp("reports")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(here)
        patch.setenv("XDG_CONFIG_HOME", str(here / "config"))
        five_runs(here)
        for output, words in OUTPUTS.items():
            written = main.run(["report", *words, "--output", f"{output}.html"])
            assert written == 0, output
    return here


@pytest.fixture
def see(require_program: Callable[[str], str], tmp_path: Path) -> See:
    """Open a page, with more in its body, in a window of some size; return its word."""
    chromium = require_program("chromium")

    def see(html: str, body: str, size: tuple[int, int]) -> Any:
        page, frame = tmp_path / "page.html", tmp_path / "frame.html"
        page.write_text(html.replace("</body>", f"{body}</body>"))
        width, height = size
        # No window of a browser is as narrow as a telephone, but a frame is.
        frame.write_text(
            "<script>onmessage = event => document.body.textContent = event.data"
            f"</script><body><iframe src='{page.as_uri()}' width={width} "
            f"height={height}></iframe>"
        )
        ended = subprocess.run(
            [
                chromium,
                *("--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"),
                *("--enable-logging=stderr", "--virtual-time-budget=20000"),
                f"--user-data-dir={tmp_path / 'profile'}",
                f"--window-size={width + 60},{height + 120}",
                frame.as_uri(),
            ],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        assert "CONSOLE" not in ended.stderr
        said = re.search(r"<body>(.*)</body>", ended.stdout, re.DOTALL)
        assert said is not None
        return json.loads(unescape(said[1]))

    return see


@pytest.fixture
def axe(require_program: Callable[[str], str]) -> str:
    """The accessibility checks of axe, from the registry of npm."""
    return packed_axe(require_program("npm"))


@cache
def packed_axe(npm: str) -> str:
    with TemporaryDirectory() as where:
        asked = [npm, "pack", "--silent", AXE]
        subprocess.run(asked, cwd=where, check=True, capture_output=True, timeout=120)
        (packed,) = Path(where).glob("*.tgz")
        with tarfile.open(packed) as files:
            script = files.extractfile("package/axe.min.js")
            assert script is not None
            return script.read().decode()


@pytest.mark.parametrize(
    ("output", "size"),
    [
        *((output, DESKTOP) for output in OUTPUTS),
        ("digits", PHONE),
        *(pytest.param(output, PHONE, marks=REPETITION) for output in [*OUTPUTS][1:]),
    ],
)
def test_it_holds_the_whole_argument(
    reports: Path, see: See, output: str, size: tuple[int, int]
) -> None:
    html = (reports / f"{output}.html").read_text()
    assert len(html.encode()) < 1_500_000
    ends = see(html, PROBE % [*PARTS], size)
    assert ends["wide"] <= 0
    assert all(ends[part] <= size[1] for part in PARTS), ends
    assert ends["picture svg"] <= 1.4 * size[1], ends
    if size == DESKTOP:
        assert ends["picture svg"] <= size[1], ends
    is_none = 'class="answer none"' in html
    assert is_none == (output == "nothing"), "green where the limits are met, only"


@pytest.mark.parametrize(
    ("output", "look"),
    [
        *(("digits", look) for look in LOOKS),
        ("nothing", "desktop"),
        *(
            pytest.param("nothing", look, marks=REPETITION)
            for look in ("phone", "dark", "print")
        ),
    ],
)
def test_everybody_can_use_it(
    reports: Path, see: See, axe: str, output: str, look: str
) -> None:
    size, media = LOOKS[look]
    html = (reports / f"{output}.html").read_text()
    if media:
        assert media in html
        html = html.replace(media, "@media all")
    assert see(html, CHECK % axe, size) == []


def test_the_checks_find_what_is_wrong(reports: Path, see: See, axe: str) -> None:
    html = (reports / "digits.html").read_text()
    broken = html.replace(
        "<main>", '<main><img src="data:," width="9"><button></button>'
    )
    found = {name for name, _ in see(broken, CHECK % axe, DESKTOP)}
    assert {"image-alt", "button-name"} <= found


@pytest.mark.parametrize("num_moves", [8, pytest.param(40, marks=REPETITION)])
@pytest.mark.parametrize(
    "output",
    [
        "digits",
        *(pytest.param(output, marks=REPETITION) for output in [*OUTPUTS][1:]),
    ],
)
def test_the_page_chooses_what_its_command_chooses(
    reports: Path,
    see: See,
    output: str,
    num_moves: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    html = (reports / f"{output}.html").read_text()
    monkeypatch.chdir(reports)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(reports / "config"))
    moved = see(html, MOVES % (7 + num_moves, num_moves), DESKTOP)
    assert len({then for then, _, _ in moved}) > num_moves / 3
    for then, command, chosen in moved:
        _, *words = shlex.split(command)
        main.run([*words, "--json"])
        answer = json.loads(capsys.readouterr().out)
        (row,) = (each for each in answer["rows"] if each["is_chosen"])
        batch = row["batch"]
        verb = "Use" if answer["meets_constraints"] else "Closest:"
        assert f"{verb} {row['world_size']:,} " in then, command
        factors = batch["local_batch_size"], batch["data_parallel_size"]
        written = " x ".join(map(str, factors))
        assert f"global batch {batch['global_batch_size']} = {written}" in then
        assert f": {duration(row['time_s']['value'])} [" in then, command
        if (chance := row["probability"]) is not None and chance >= 0.5:
            assert then.endswith(f": {probability(chance)}."), command
        assert chosen == f"{row['world_size']:,}"


def test_where_energy_is_limited_no_limits_can_be_moved(
    reports: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(reports)
    words = [*OUTPUTS["digits"], "--power", "100W", "--max-energy", "1kWh"]
    assert main.run(["report", *words, "--output", "energy.html"]) == 0
    assert "<legend>What if" in (reports / "digits.html").read_text()
    assert "<legend>What if" not in (reports / "energy.html").read_text()


def test_of_several_workloads_each_has_its_answer(
    reports: Path, see: See, axe: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(reports)
    lines = ["model,gpu_type,gpus,nodes,batch_per_gpu,images_per_s"]
    lines += [
        f"{model},A100,{gpus},1,64,{rate * gpus**power:.0f}"
        for model, rate, power in (("resnet", 790, 0.97), ("vit", 320, 0.7))
        for gpus in (1, 2, 4, 8)
    ]
    Path("two.csv").write_text("\n".join([*lines, ""]))
    assert main.run(["import", "two.csv", "runs/two"]) == 0
    asked = ["report", "runs/two", "--samples", "1e8", "--output", "two.html"]
    assert main.run(asked) == 0
    html = Path("two.html").read_text()
    picked = see(html, PICKS, DESKTOP)
    names = [name for name, *_ in picked]
    assert sorted(names) == ["workload resnet", "workload vit"]
    for name, shown, said, drawn, command in picked:
        workload = name.removeprefix("workload ")
        assert (shown, drawn > 0) == (1, True)
        found = scalelab.load("runs/two").recommend(
            job={"samples": 100_000_000}, select={"workload": workload}
        )
        assert f"Use {found.chosen.world_size} A100" in said
        assert f"{workload} on A100" in html
        assert f"--select workload={workload} " in command
    assert len({said for _, _, said, _, _ in picked}) == 2
    assert see(html, CHECK % axe, PHONE) == []
    narrowed = [*asked[:-1], "one.html", "--select", "workload=vit"]
    assert main.run(narrowed) == 0
    assert "Answer for" not in Path("one.html").read_text()
