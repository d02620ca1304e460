"""Job scripts of the answer, also as bash reads them."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from measured_runs import COMMAND, EMULATED, measured_run
from sentences import Golden, refused

from scalelab.inputs.placeholders import TRIAL_PLACEHOLDERS
from scalelab.recommend.answer.recommendation import Recommendation
from scalelab.session import Run, load

SITES = {
    "slurm": "scheduler: slurm\ndevice_type: cuda\ngpus_per_node: 4\nwalltime: 1d\n",
    "cores": "scheduler: slurm\ndevice_type: cpu\ngpus_per_node: 4\n",
    "short": "scheduler: slurm\ndevice_type: cuda\ngpus_per_node: 4\nwalltime: 2h\n",
    "pbs": "scheduler: pbs\ndevice_type: cuda\ngpus_per_node: 4\nqueue: gpu\n"
    "prologue: [module load cuda]\n",
    "short-pbs": "scheduler: pbs\ndevice_type: cuda\ngpus_per_node: 4\nwalltime: 2h\n",
    "local": "scheduler: local\ndevice_type: cpu\n",
}
HEAD, AXES = COMMAND.split("command: >-")[0], COMMAND[COMMAND.index("code:") :]
# Says what it was started with. Its first line names the interpreter itself: a version
# manager's `python3` would put folders of its own before those of PATH.
SHOW = f"""#!{sys.executable}
import json, os, sys
print(json.dumps(dict(argv=sys.argv[1:], env=dict(os.environ), at=os.getcwd())))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("jobs")
    (folder / "train.py").write_text("")
    programs = folder / "env" / "bin"
    programs.mkdir(parents=True)
    for name in ("torchrun", "trainer"):
        (programs / name).write_text(SHOW)
        (programs / name).chmod(0o755)
    for name, text in SITES.items():
        (folder / f"{name}.yaml").write_text(f"{text}python: {programs}/python\n")
    return folder


@pytest.fixture(scope="module")
def run(folder: Path) -> Run:
    return load(measured_run(folder / "run", COMMAND).directory)


@pytest.fixture(scope="module")
def one_node(run: Run) -> Recommendation:
    answer = run.recommend(max_time="30d")  # the cheapest holds it
    assert answer.chosen.num_nodes == 1
    return answer


@pytest.fixture(scope="module")
def four_nodes(run: Run) -> Recommendation:
    answer = run.recommend(gpus=[16], max_time="30min")
    assert (answer.chosen.world_size, answer.chosen.num_nodes) == (16, 4)
    return answer


@pytest.mark.slow
def test_a_script_says_that_nothing_meets_the_limits(run: Run, folder: Path) -> None:
    missed = run.recommend(max_time="1s")
    assert not missed.meets_constraints
    lines = script(run, folder, "slurm", missed)
    assert "# Nothing meets < 1 s; this is the closest." in lines


def script(run: Run, folder: Path, site: str, answer: Recommendation) -> list[str]:
    return run.job_script(answer, str(folder / f"{site}.yaml")).splitlines()


def asked(directory: Path, command: str, old: str = "", new: str = "") -> Run:
    """Return a run of which nothing was measured, of another command."""
    (directory / "train.py").write_text("")
    text = f"{HEAD}command: {command}\n{AXES.replace(old, new) if old else AXES}"
    return load(measured_run(directory / "run", text, ending=None).directory)


def started(lines: list[str], directory: Path, **env: str) -> dict[str, object]:
    """Return what a script starts its program with, as bash runs it."""
    return said(lines, directory, **env)[-1]


def said(lines: list[str], directory: Path, **env: str) -> list[dict[str, object]]:
    file = directory / "job.sh"
    file.write_text("\n".join(lines))
    base = {"PATH": os.environ["PATH"], "HOME": str(directory), "SLURM_JOB_ID": "7"}
    done = subprocess.run(
        ["bash", str(file)],
        env={**base, **env},
        cwd=directory,
        capture_output=True,
        text=True,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_slurm_one_node(
    run: Run, folder: Path, one_node: Recommendation, golden: Golden
) -> None:
    lines, row = script(run, folder, "slurm", one_node), one_node.chosen
    golden(*lines[:2])
    assert "#SBATCH --nodes=1" in lines
    assert f"#SBATCH --gpus-per-node={row.world_size}" in lines
    words = shlex.split(lines[-1])
    assert words[:3] == [
        "torchrun",
        "--standalone",
        f"--nproc-per-node={row.world_size}",
    ]
    assert words[3:] == [
        *("train.py", "--batch", str(row.batch.local_batch_size)),
        *("--accumulate", str(row.batch.gradient_accumulation_steps)),
        *("--lr", str(0.1 * row.batch.global_batch_size / 32)),
        *("--seed", "3", "--out", "."),
    ]


@pytest.mark.slow
def test_slurm_many_nodes(
    run: Run, folder: Path, four_nodes: Recommendation, golden: Golden
) -> None:
    lines = script(run, folder, "slurm", four_nodes)
    assert "#SBATCH --nodes=4" in lines
    assert "#SBATCH --ntasks-per-node=1" in lines
    assert "#SBATCH --gpus-per-node=4" in lines
    command = lines[-1]
    golden(command)
    assert '"$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)' in command
    assert "--nproc-per-node=4 train.py --batch" in command
    on_cores = script(run, folder, "cores", four_nodes)[-1]
    assert " --cpus-per-task=4 torchrun " in on_cores


def test_every_placeholder_is_filled(
    tmp_path: Path, folder: Path, run: Run, one_node: Recommendation
) -> None:
    names = [*TRIAL_PLACEHOLDERS, "depth", "note"]
    other = asked(
        tmp_path,
        "python train.py " + " ".join(f"{name}={{{name}}}" for name in names),
        "seed: 3",
        "seed: 3\nprecision: bf16\noptions: {depth: 50, note: a 'b' $c}",
    )
    argv = started(script(other, folder, "slurm", one_node), tmp_path)["argv"]
    assert isinstance(argv, list)
    values = dict(word.split("=", 1) for word in argv if word[0] != "-" and "=" in word)
    assert values.keys() == set(names)
    assert not any("{" in value for value in values.values())
    row = one_node.chosen
    assert values["note"] == "a 'b' $c"
    assert (values["depth"], values["precision"]) == ("50", "bf16")
    assert values["world_size"] == values["gpus_per_node"] == str(row.world_size)
    assert values["accumulation_steps_of_all_ranks"] == str(
        row.world_size * row.batch.gradient_accumulation_steps
    )


def test_the_id_is_that_of_the_trial_that_was_measured(
    tmp_path: Path, folder: Path, run: Run, one_node: Recommendation
) -> None:
    other = asked(tmp_path, "python train.py {trial_id}")
    argv = started(script(other, folder, "slurm", one_node), tmp_path)["argv"]
    assert isinstance(argv, list)
    rows, row = run.observations, one_node.chosen
    same = rows[
        (rows["world_size"] == row.world_size)
        & (rows["local_batch_size"] == row.batch.local_batch_size)
    ]
    assert argv[-1] in set(same["trial_id"])


def test_an_axis_has_the_value_of_the_row_or_what_all_rows_have_in_common(
    tmp_path: Path, folder: Path, one_node: Recommendation
) -> None:
    other = asked(
        tmp_path,
        "python train.py {precision} {depth}",
        "seed: 3",
        "seed: 3\nprecision: [fp32, bf16]\noptions: {depth: [18, 50]}",
    )
    row = replace(one_node.chosen, settings={"depth": 50})
    answer = replace(one_node, rows=(row,), held={"precision": "bf16"})
    argv = started(script(other, folder, "slurm", answer), tmp_path)["argv"]
    assert isinstance(argv, list)
    assert argv[-2:] == ["bf16", "50"]


@pytest.mark.parametrize(
    ("command", "program"),
    [
        ("python train.py -x", ["train.py", "-x"]),
        ("python -u train.py", ["--no-python", "python", "-u", "train.py"]),
        ("python -m mine", ["--no-python", "python", "-m", "mine"]),
        ("./train 'a b'", ["--no-python", "./train", "a b"]),
    ],
)
def test_torchrun_starts_any_command(
    tmp_path: Path,
    folder: Path,
    one_node: Recommendation,
    command: str,
    program: list[str],
) -> None:
    other = asked(tmp_path, f"{command} {{local_batch_size}} {{seed}}")
    found = started(script(other, folder, "slurm", one_node), tmp_path)
    assert isinstance(found["argv"], list)
    assert found["argv"][2:-2] == program


def test_the_program_finds_the_environment_of_a_trial(
    tmp_path: Path, folder: Path, one_node: Recommendation
) -> None:
    other = asked(
        tmp_path,
        "trainer --out {trial_dir}",
        "seed: 3",
        "seed: 3\nlauncher: none\nuses: [SCALELAB_LOCAL_BATCH_SIZE]\nenv:\n"
        "  MODE: off'line\n  PORT: '{master_port}'\n  HERE: '${HOME}'\n"
        "  BATCH: b {local_batch_size}\n",
    )
    answer = replace(one_node, held={**one_node.held, "threads_per_rank": 3})
    found = started(script(other, folder, "slurm", answer), tmp_path, SLURM_JOB_ID="42")
    env, batch = found["env"], str(one_node.chosen.batch.local_batch_size)
    assert isinstance(env, dict)
    wanted = {
        "MODE": "off'line",
        "HERE": "${HOME}",
        "BATCH": f"b {batch}",
        "SCALELAB_LOCAL_BATCH_SIZE": batch,
        "SCALELAB_METRICS": "/dev/null",
        "OMP_NUM_THREADS": "3",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "20042",
        "PORT": "20042",
    }
    assert {name: env.get(name) for name in wanted} == wanted
    assert env["PATH"].startswith(f"{folder}/env/bin:")


def test_keys_that_are_not_known_here_are_asked_for(
    tmp_path: Path, folder: Path, one_node: Recommendation
) -> None:
    text = "seed: 3\nlauncher: none\nenv_from: OF_USER\nenv: {OF_GROUP: key}\n"
    other = asked(tmp_path, "trainer {local_batch_size}", "seed: 3", text)
    lines = script(other, folder, "slurm", one_node)
    assert "export OF_GROUP=key" in lines
    env = started(lines, tmp_path, OF_USER="mine")["env"]
    assert isinstance(env, dict)
    assert (env["OF_GROUP"], env["OF_USER"]) == ("key", "mine")
    (tmp_path / "run" / "env.json").unlink()
    lines = script(load(tmp_path / "run"), folder, "slurm", one_node)
    assert not any("export OF_GROUP" in line for line in lines)
    for known in ("OF_USER", "OF_GROUP"):
        with pytest.raises(subprocess.CalledProcessError) as failed:
            started(lines, tmp_path, **{known: "mine"})
        assert "is not set. Export it, and submit this job so" in failed.value.stderr


def test_what_differs_between_ranks_is_left_to_each_of_them(
    tmp_path: Path, folder: Path, one_node: Recommendation
) -> None:
    other = asked(
        tmp_path,
        "trainer 'rank {rank}' {local_batch_size} {seed}",
        "seed: 3",
        "seed: 3\nenv: {ME: 'r {local_rank}'}",
    )
    found = started(script(other, folder, "slurm", one_node), tmp_path)
    assert isinstance(found["argv"], list)
    *_, no_python, bash, flag, line = found["argv"]
    assert [no_python, bash, flag] == ["--no-python", "bash", "-c"]
    ended = subprocess.run(
        ["bash", "-c", line],
        env={
            "RANK": "5",
            "LOCAL_RANK": "1",
            "PATH": f"{folder}/env/bin:{os.environ['PATH']}",
        },
        capture_output=True,
        text=True,
        check=True,
    )
    rank = json.loads(ended.stdout)
    assert rank["argv"][0] == "rank 5"
    assert rank["env"]["ME"] == "r 1"


def test_the_time_limit_holds_more_than_the_training(
    run: Run, folder: Path, one_node: Recommendation
) -> None:
    lines = script(run, folder, "slurm", one_node)
    limit = next(line for line in lines if line.startswith("#SBATCH --time="))
    days, hours, minutes = re.fullmatch(r".*=(?:(\d+)-)?(\d+):(\d+):00", limit).groups()  # type: ignore[union-attr]
    seconds = ((int(days or 0) * 24 + int(hours)) * 60 + int(minutes)) * 60
    assert seconds >= 1.1 * one_node.chosen.time_s.hi
    assert any(line.startswith("# The time limit holds ") for line in lines)


FAKE_SUBMIT = """#!/bin/sh
count=$(($(cat count 2>/dev/null || echo 100) + 1))
echo $count > count
echo "$0 $@" >> calls
echo $count.server
"""


@pytest.mark.parametrize(
    ("site", "program", "after"),
    [
        (
            "short",
            "sbatch --parsable",
            "--dependency=afternotok{} --kill-on-invalid-dep=yes ",
        ),
        ("short-pbs", "qsub", "-W depend=afternotok{} "),
    ],
)
def test_what_takes_longer_than_the_site_allows_is_a_chain_of_jobs(
    run: Run,
    folder: Path,
    tmp_path: Path,
    one_node: Recommendation,
    site: str,
    program: str,
    after: str,
) -> None:
    row, hours = one_node.chosen, 5 * 3600.0
    long = replace(row.time_s, value=hours, lo=0.9 * hours, hi=hours)
    answer = replace(
        one_node, rows=(replace(row, amounts={**row.amounts, "time": long}),)
    )
    lines = script(run, folder, site, answer)
    assert any(re.search(r"(time|walltime)=02:00:00$", line) for line in lines)
    (tmp_path / "job.sh").write_text("\n".join(lines))
    fake = tmp_path / program.split()[0]
    fake.write_text(FAKE_SUBMIT)
    fake.chmod(0o755)
    subprocess.run(
        ["bash", "job.sh"],
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        cwd=tmp_path,
        capture_output=True,
        check=True,
    )
    # 5.5 h and the start of each: three jobs of 2 h, each after all before it.
    ids = ["", ":101.server", ":101.server:102.server"]
    options = [after.format(each) if each else "" for each in ids]
    assert (tmp_path / "calls").read_text().splitlines() == [
        f"{tmp_path}/{program} {each}job.sh" for each in options
    ]


def test_pbs(
    run: Run, folder: Path, one_node: Recommendation, four_nodes: Recommendation
) -> None:
    lines, count = script(run, folder, "pbs", one_node), one_node.chosen.world_size
    assert lines[1:3] == ["#PBS -N run", "#PBS -q gpu"]
    assert f"#PBS -l select=1:ncpus={count}:ngpus={count}" in lines
    assert "module load cuda" in lines
    assert 'cd "$PBS_O_WORKDIR"' in lines
    assert lines[-1].startswith("torchrun --standalone")
    lines = script(run, folder, "pbs", four_nodes)
    assert "#PBS -l select=4:ncpus=4:ngpus=4" in lines
    assert lines[-1].startswith("pbsdsh -- /bin/bash -c ")


PBSDSH = """#!/bin/bash
shift  # the two dashes
for host in $(cat "$PBS_NODEFILE"); do
  (cd /; exec env -i PATH=/usr/bin:/bin HOSTNAME=$host "$@")
done
"""


def test_tasks_on_the_nodes_of_pbs_find_what_the_script_has_prepared(
    folder: Path, tmp_path: Path, four_nodes: Recommendation
) -> None:
    at = tmp_path / "my code"
    at.mkdir()
    other = asked(at, "trainer {seed}", "seed: 3", "seed: 3\nenv: {MODE: a 'b' $c}")
    lines = script(other, folder, "pbs", four_nodes)
    (at / "pbsdsh").write_text(PBSDSH)
    (at / "pbsdsh").chmod(0o755)
    (at / "nodes").write_text("n1\nn2\nn3\nn4\n")
    found = said(
        [line.replace("module load cuda", "export LOADED=cuda") for line in lines],
        at,
        PATH=f"{at}:{os.environ['PATH']}",
        PBS_JOBID="4711.server",
        PBS_O_WORKDIR=str(at),
        PBS_NODEFILE=str(at / "nodes"),
    )
    assert len(found) == 4
    assert [each["at"] for each in found] == [str(at)] * 4
    for each in found:
        env, argv = each["env"], each["argv"]
        assert isinstance(env, dict)
        assert isinstance(argv, list)
        assert (env["MODE"], env["LOADED"]) == ("a 'b' $c", "cuda")
        assert "--rdzv-endpoint=n1:24711" in argv
        assert argv[-3:] == ["--no-python", "trainer", "3"]


@pytest.mark.slow
def test_uneven_nodes_have_no_launch_line(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "train.py").write_text("")
    text = COMMAND.replace("[1, 2, 4, 8, 16]", "[7]")
    uneven = load(measured_run(tmp_path / "run", text).directory)
    with refused("uneven_nodes", "7 ranks", "2 nodes", "2x4+3"):
        script(uneven, folder, "slurm", uneven.recommend())


def test_a_launcher_of_one_node_is_not_spread_over_several(
    tmp_path: Path, folder: Path, four_nodes: Recommendation
) -> None:
    other = asked(tmp_path, "python train.py", "seed: 3", "seed: 3\nlauncher: none")
    with refused("launcher_of_one_node", "launcher=none", "4 nodes"):
        script(other, folder, "slurm", four_nodes)


def test_sites_without_a_batch_system_have_no_job_script(
    run: Run, folder: Path, one_node: Recommendation
) -> None:
    with refused("site_without_job_script", "'local'", "scheduler=local"):
        script(run, folder, "local", one_node)


def test_a_workload_has_no_command_to_start(
    folder: Path, tmp_path: Path, one_node: Recommendation, golden: Golden
) -> None:
    own = load(measured_run(tmp_path / "run", EMULATED, ending=None).directory)
    lines = script(own, folder, "slurm", one_node)
    golden(lines[-1])
    assert "ranks, local batch" in lines[-1]


def test_a_job_records_its_steps_where_the_answer_is_kept(
    run: Run, folder: Path, one_node: Recommendation
) -> None:
    lines = script(run, folder, "slurm", one_node)
    (probe,) = [line for line in lines if "SCALELAB_PROBE=" in line]
    (path,) = [line for line in lines if line.startswith("export PYTHONPATH=")]
    done = subprocess.run(
        ["bash", "-c", f"{probe}; {path}; echo $SCALELAB_PROBE; echo $PYTHONPATH"],
        env={"SLURM_JOB_ID": "17", "PYTHONPATH": "/mine"},
        capture_output=True,
        text=True,
        check=True,
    )
    steps, inside = done.stdout.split()
    job = Path(steps).parent
    assert (Path(steps).name, job.name) == ("steps", "17")
    assert job.parents[1] == run.directory / "jobs"
    kept = json.loads((job.parent / "answer.json").read_text())
    assert kept["world_size"] == one_node.chosen.world_size
    assert kept["time_s"]["value"] == one_node.chosen.time_s.value
    first, last = inside.split(":")
    assert (Path(first) / "sitecustomize.py").is_file()
    assert last == "/mine"


def test_without_the_probe_nothing_is_recorded(
    folder: Path, one_node: Recommendation, tmp_path: Path
) -> None:
    bare = asked(tmp_path, "python train.py", "code:", "probe: none\ncode:")
    lines = script(bare, folder, "slurm", one_node)
    assert not any("SCALELAB_PROBE" in line for line in lines)


@pytest.mark.slow
def test_the_walltime_that_was_asked_makes_a_chain(run: Run, folder: Path) -> None:
    whole = run.recommend(max_time="30d")
    lines = script(run, folder, "slurm", whole)
    assert not any("one after the other" in line for line in lines)
    half = f"{whole.chosen.time_s.value / 2:.0f}s"
    chained = run.recommend(max_time="30d", walltime=half, checkpoint="1s")
    assert chained.chained_jobs[0]["rows"][0]["num_jobs"] >= 2
    lines = script(run, folder, "slurm", chained)
    assert any("jobs, one after the other" in line for line in lines)
