"""The probe in processes of its own: what it sees, and that it never disturbs."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator
from contextlib import chdir, closing
from pathlib import Path
from typing import Any

import pytest
from warm_interpreter import WarmInterpreter

import scalelab
from scalelab.launch.command.probe.streams import ProbedProcess, ProbedProcesses

INSIDE = Path(scalelab.__file__).parent / "inside"
SET_UP = """
import os, sys, torch
from torch.utils.data import DataLoader, TensorDataset
torch.set_num_threads(1)
model = torch.nn.Linear(8, 1)
def train(optimizer, steps=16):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).mean().backward()
        optimizer.step()
"""


@pytest.fixture(scope="module")
def warm() -> Iterator[WarmInterpreter]:
    """Return an interpreter that has imported PyTorch, and runs programs."""
    with closing(WarmInterpreter("warm_programs.py")) as interpreter:
        yield interpreter


def run(
    folder: Path,
    text: str,
    *options: str,
    warm: WarmInterpreter | None = None,
    **env: str,
) -> tuple[int, str]:
    """Run a program with the probe; return its exit status and output."""
    program = folder / "program.py"
    program.write_text(textwrap.dedent(text))
    path = os.pathsep.join([str(INSIDE), *filter(None, [env.pop("BEHIND", "")])])
    probe = {"PYTHONPATH": path, "SCALELAB_PROBE": str(folder / "probe" / "0")}
    environment = {**os.environ, **probe, **env}
    with chdir(folder):
        if warm is not None:
            ended = warm(program.name, environment=environment)
        else:
            words = [sys.executable, *options, program.name]
            ended = subprocess.run(
                words, env=environment, capture_output=True, text=True
            )
    return ended.returncode, ended.stdout + ended.stderr


def seen(folder: Path) -> list[ProbedProcess]:
    processes = ProbedProcesses(folder / "probe")
    processes.read()
    return list(processes.values())


def num_steps(process: ProbedProcess) -> dict[str, int]:
    """Return how often each optimizer of a process has stepped."""
    return {
        process.notes[index][1]["name"]: steps[-1].number
        for index, steps in process.steps.items()
    }


@pytest.mark.parametrize("module", [*INSIDE.rglob("*.py")], ids=lambda each: each.name)
def test_it_is_written_for_python_3_8_and_knows_nothing_of_scalelab(
    module: Path,
) -> None:
    tree = ast.parse(module.read_text(), feature_version=(3, 8))
    imported = {
        (node.module or "") if isinstance(node, ast.ImportFrom) else alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    roots = {name.partition(".")[0] for name in imported}
    assert roots <= {*sys.stdlib_module_names, "scalelab_probe", "torch"}


def test_a_program_without_torch_writes_nothing(tmp_path: Path) -> None:
    assert run(tmp_path, "import sys; print('torch' in sys.modules)") == (0, "False\n")
    assert seen(tmp_path) == []


def test_the_hidden_sitecustomize_runs_as_well(tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text("import sys; sys.customized = True\n")
    text = "import sys, sitecustomize as s; print(sys.customized, s.__file__)"
    status, output = run(tmp_path, text, BEHIND=str(site))
    assert (status, output) == (0, f"True {site / 'sitecustomize.py'}\n")


def test_an_isolated_python_runs_without_it(tmp_path: Path) -> None:
    text = "import sys; print('scalelab_probe' in sys.modules)"
    assert run(tmp_path, text, "-I") == (0, "False\n")
    assert run(tmp_path, text) == (0, "True\n")


@pytest.mark.slow
def test_it_counts_the_steps_of_optimizers_of_every_kind(tmp_path: Path) -> None:
    status, output = run(
        tmp_path,
        SET_UP
        + """
class Inner(torch.optim.SGD):
    pass
class Outer(Inner):
    def step(self, closure=None):
        return super().step(closure)
class Anew(torch.optim.SGD):
    pass
train(torch.optim.AdamW(model.parameters(), foreach=True))
train(Outer(model.parameters(), lr=0.1))
for _ in range(16):
    train(Anew(model.parameters(), lr=0.1), steps=1)
lbfgs = torch.optim.LBFGS(model.parameters())
def closure():
    lbfgs.zero_grad()
    loss = model(torch.randn(4, 8)).mean()
    loss.backward()
    return loss
for _ in range(16):
    lbfgs.step(closure)
compiled = torch.optim.Adam(model.parameters())
step = torch.compile(compiled.step, backend="eager")
for _ in range(16):
    model(torch.randn(4, 8)).mean().backward()
    step()
fails = torch.optim.RMSprop(model.parameters())
try:
    fails.step(lambda: 1 / 0)
except ZeroDivisionError:
    train(fails)
""",
    )
    assert status == 0, output
    assert "scalelab" not in output  # as a warning of the compiler's would say
    (process,) = seen(tmp_path)
    expected = ("AdamW", "Outer", "Anew", "LBFGS", "Adam", "RMSprop")
    assert num_steps(process) == dict.fromkeys(expected, 16)


@pytest.mark.slow
def test_it_counts_what_loaders_of_every_kind_hand_out(
    tmp_path: Path, warm: WarmInterpreter
) -> None:
    status, output = run(
        tmp_path,
        SET_UP
        + """
from torch.utils.data import BatchSampler, IterableDataset, SequentialSampler
class Endless(IterableDataset):
    def __iter__(self):
        return iter(torch.randn(64, 8))
    def __len__(self):
        raise NotImplementedError
data = TensorDataset(torch.randn(64, 8))
sampler = BatchSampler(SequentialSampler(data), 8, drop_last=False)
loaders = [
    DataLoader(data, batch_size=16),
    DataLoader(data, batch_size=32, num_workers=2, multiprocessing_context="fork"),
    DataLoader(data, batch_size=20),
    DataLoader(Endless(), batch_size=4, num_workers=1),
    DataLoader(data, batch_size=None, sampler=sampler),
    DataLoader(torch.randn(64, 8), batch_size=None),
]
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for loader in loaders:
    for epoch in range(2):
        for batch in loader:
            pass
    train(optimizer, steps=1)
with torch.no_grad():
    next(iter(loaders[0]))
train(optimizer, steps=1)
""",
        warm=warm,
    )
    assert (status, output) == (0, "")
    (process,) = seen(tmp_path)
    assert [draws[:3] for draws in process.draws] == [
        ((0, True), 8, 128),
        ((1, True), 4, 128),
        ((2, True), 8, 128),
        ((3, True), 32, 128),
        ((4, True), 16, 128),
        ((5, True), 128, None),
        ((0, False), 1, 16),
    ]
    assert all(draws.waited_s > 0 for draws in process.draws)


@pytest.mark.slow
def test_it_sees_what_enters_the_model_and_leaves_nothing_in_it(
    tmp_path: Path, warm: WarmInterpreter
) -> None:
    status, output = run(
        tmp_path,
        SET_UP
        + """
import copy
class Named(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Linear(4, 1))
    def forward(self, values=None):
        return self.inner(values)
model = Named()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
hooked = []
for step, (x,) in enumerate(DataLoader(TensorDataset(torch.randn(80, 8)), 2), 1):
    if step == 5:
        kept = copy.deepcopy(model)
        torch.save(model, "model.pt")
    hooked.append(len(model._forward_pre_hooks))
    with torch.no_grad():
        model(values=torch.randn(64, 8))
    model(values=x[:1]).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
print([step for step, count in enumerate(hooked, 1) if count])
kept(values=x)
print(any("scalelab" in str(vars(part)) for part in kept.modules()))
""",
        warm=warm,
    )
    assert status == 0, output
    looked_at = [1, 2, 3, 4, 5, 6, 7, 8, 16, 32]
    assert output == f"{looked_at[1:]}\nFalse\n"

    (process,) = seen(tmp_path)
    assert [note["at_step"] for note in process.entries] == looked_at
    assert {str(note["drawn"]) for note in process.entries} == {"[[0, 2, 16]]"}
    # a hook of all modules sees no named arguments
    entered = [note["entered"] for note in process.entries]
    assert entered == [[[0, []]], *[[[0, [[1, 8, 8]]]]] * 9]

    loads = """
import torch
class Named(torch.nn.Module):
    def forward(self, values):
        return self.inner(values)
torch.load("model.pt", weights_only=False)(torch.randn(2, 8))
"""
    status, output = run(tmp_path, loads, "-I")
    assert (status, output) == (0, "")


@pytest.mark.slow
def test_a_module_that_takes_no_hook_disturbs_no_other(
    tmp_path: Path, warm: WarmInterpreter
) -> None:
    status, output = run(
        tmp_path,
        SET_UP
        + """
class Square(torch.nn.Module):
    def forward(self, values):
        return values * values
loss = torch.jit.script(Square())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, in DataLoader(TensorDataset(torch.randn(80, 8)), 2):
    loss(model(x[:1])).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
print(len(model._forward_pre_hooks))
""",
        warm=warm,
    )
    assert status == 0, output
    assert output.split()[-1] == "0"
    (process,) = seen(tmp_path)
    assert [note["entered"] for note in process.entries] == [[[0, [[1, 8, 8]]]]] * 10


@pytest.mark.slow
@pytest.mark.repetition
@pytest.mark.parametrize("is_whole", [True, False])
def test_a_compiled_model_compiles_at_most_once_more(
    tmp_path: Path, is_whole: bool
) -> None:
    text = (
        SET_UP
        + f"""
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(8, 4), torch.nn.Linear(4, 1)
    def forward(self, inputs):
        return self.last(self.first(inputs).relu())
def wrapped(model, how):
    return torch.compile(model, **how)
def within(model, how):
    model.compile(**how)
    return model
def function(model, how):
    def loss(inputs):
        return model(inputs).mean()
    return torch.compile(loss, **how)
for form in (wrapped, within, function):
    torch._dynamo.reset()
    model, compiled = Net(), []
    def backend(graph, inputs):
        compiled.append(graph)
        return graph.forward
    forward = form(model, dict(backend=backend, fullgraph={is_whole}))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, in DataLoader(TensorDataset(torch.randn(80, 8)), 2):
        forward(x).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    print(len(compiled))
"""
    )
    status, output = run(tmp_path, text)
    assert status == 0, output
    _, without = run(tmp_path, text, "-E")
    counts = [*zip(output.split(), without.split(), strict=True)]
    assert len(counts) == 3
    for probed, unprobed in counts:
        assert int(probed) <= int(unprobed) + 1


@pytest.mark.slow
def test_steps_that_a_scaler_skips_are_counted(
    tmp_path: Path, warm: WarmInterpreter
) -> None:
    status, output = run(
        tmp_path,
        SET_UP
        + """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
for step in range(12):
    factor = float("inf") if step % 3 == 1 else 1.0
    scaler.scale(factor * model(torch.randn(4, 8)).mean()).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
""",
        warm=warm,
    )
    assert (status, output) == (0, "")
    (process,) = seen(tmp_path)
    assert [step.num_skipped for step in process.steps[0]] == [0, *[1, 0] * 3, 1]


@pytest.mark.slow
def test_what_a_program_does_to_its_process_loses_little(
    tmp_path: Path, warm: WarmInterpreter
) -> None:
    status, output = run(
        tmp_path,
        SET_UP
        + """
import multiprocessing, signal, time
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def trains(name):
    train(optimizer, steps=40)
    if name == "killed":
        time.sleep(0.01)
        train(optimizer, steps=20)
        os.kill(os.getpid(), signal.SIGKILL)
if __name__ == "__main__":
    train(optimizer, steps=20)
    os.closerange(3, 256)
    results = open("results", "w", buffering=1)  # it gets number 3
    print("kept", file=results)
    train(optimizer, steps=20)
    for name in ("forked", "killed"):
        child = multiprocessing.get_context("fork").Process(target=trains, args=(name,))
        child.start()
        child.join()
    if os.fork() == 0:  # it makes no step
        os._exit(0)
    os.wait()
    if os.fork() == 0:
        train(optimizer, steps=40)
        os._exit(0)
    os.wait()
    train(optimizer, steps=20)
""",
    )
    assert (status, output) == (0, "")
    assert (tmp_path / "results").read_text() == "kept\n"
    steps = sorted(num_steps(process)["SGD"] for process in seen(tmp_path))
    # os._exit and SIGKILL lose what came in the last milliseconds
    assert steps[-1] == 60
    assert 40 in steps
    assert len(steps) == 4
    assert steps[0] >= 32


@pytest.mark.slow
def test_what_goes_wrong_in_it_the_program_does_not_see(
    tmp_path: Path, warm: WarmInterpreter
) -> None:
    (tmp_path / "probe").write_text("a file where the folder should be")
    text = f"{SET_UP}train(torch.optim.SGD(model.parameters(), lr=0.1))\nprint('well')"
    assert run(tmp_path, text, warm=warm) == (0, "well\n")
    (tmp_path / "probe").unlink()
    broken = text.replace("import os", "import scalelab_probe.ranks as r, os")
    broken = broken.replace("model =", "r.of_process = r.of_batch = None\nmodel =")
    assert run(tmp_path, broken, warm=warm) == (0, "well\n")
    (process,) = seen(tmp_path)
    assert [steps[-1].number for steps in process.steps.values()] == [16]


def stream_of(folder: Path) -> Any:
    """Return a stream, as the probe writes it."""
    sys.path.insert(0, str(INSIDE))
    try:
        from scalelab_probe.stream import Stream
    finally:
        sys.path.remove(str(INSIDE))
    return Stream(str(folder))


def test_a_torn_end_is_read_up_to_the_last_whole_record(tmp_path: Path) -> None:
    stream = stream_of(tmp_path)
    stream.fact(loader=0, first_batch=7)
    for number in range(1, 4):
        stream.step(0, number, float(number), [(0, 0, 1, 16, 0.25)], 0.5, 0)
    stream.flush()
    (file,) = tmp_path.glob("*.probe")
    content = file.read_bytes()
    found = Counter[int]()
    for length in range(len(content) + 1):
        file.write_bytes(content[:length])
        process = ProbedProcess(file)
        process.read()
        found[len(process.steps[0])] += 1
        file.write_bytes(content)
        process.read()
        assert [step.number for step in process.steps[0]] == [1, 2, 3]
        assert process.loaders == {0: {"loader": 0, "first_batch": 7}}
    assert found == {0: len(content) - 2 * 32, 1: 32, 2: 32, 3: 1}


def test_a_step_takes_forty_bytes_at_most(tmp_path: Path) -> None:
    stream = stream_of(tmp_path)
    for number in range(1, 101):
        stream.step(0, number, float(number), [(0, 0, 1, 16, 0.0)], 0.5, 0)
    stream.flush()
    (file,) = tmp_path.glob("*.probe")
    assert file.stat().st_size <= 100 * 40
