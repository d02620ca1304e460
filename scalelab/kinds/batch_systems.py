"""Batch systems: programs that queue jobs and hand out a cluster's nodes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scalelab.kinds.registry import Registry

Environment = Mapping[str, str]


def _is_not_said(environment: Environment) -> int | None:
    """Return None: the environment of a job does not tell the number of its nodes."""
    return None


def _one_option(directive: str) -> Sequence[str]:
    """Return a directive as it is: it has one option, which is written in one way."""
    return (directive.strip(),)


def _no_options(num_nodes: int, cores: int | None, in_held_job: bool) -> list[str]:
    """Return no options: the starter knows the nodes of the job by itself."""
    return []


def _no_tasks(num_nodes: int, devices_per_node: int) -> str:
    """Return no words: the batch system starts no tasks for devices."""
    return ""


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchSystem:
    """The interface of a batch system: its job scripts, programs and environment.

    Parameters
    ----------
    name
        Value of ``scheduler`` in a site profile.
    site
        Path, ``module:attribute``, of the settings of its sites, which render the
        request for nodes; a :class:`~scalelab.site.batch_site.BatchSite`.
    client
        Path of what runs its programs; a
        :class:`~scalelab.cluster.batch.client.BatchClient`.
    directive
        Beginning of the lines of a job script that it reads, e.g. ``#SBATCH``.
    queue_noun
        What it calls a queue, which is also the setting that names one.
    programs
        Programs that submit, show and cancel jobs; the first one submits.
    survey_program
        Program that lists its nodes: where it can be run, this batch system is here.
    test_submission
        Words before a script that ask whether a job would be taken, without
        submitting it; empty: it cannot be asked.
    options_of
        Returns the options of a directive, each in its one form: ``-N2`` and
        ``--nodes 2`` as ``-N 2`` and ``--nodes=2``.
    reserved_options
        Beginning of the options that ScaleLab writes itself, so that users must not.
    excluding_options
        Setting, and beginning of the options that must not stand beside it.
    refused_in_logs
        Finds the letters that it does not take in the path of a log; None: it takes
        all.
    log_options
        Options that send all that a job says to a file, and keep the job from being
        run again: it would be there beside the one that replaces it.
    after_job
        Option that makes a job wait for the end of another, ``{job_id}``.
    submit_for_id
        Words before a script that submit it and print nothing but the job's id.
    after_failed_jobs
        Options that make a job wait until each of several jobs has ended without
        success, and drop it when one of them succeeds; ``{job_ids}`` has a colon before
        each id. Empty: there are none.
    submitted_from
        Shell expression for the directory a job was submitted from; empty: a job's
        script starts there.
    job_variable
        Environment variable that holds the id of the job a process is in.
    num_held_nodes
        Number of nodes of that job, of the environment; None: it is not said.
    job_prefixes, kept_variables
        Prefixes of the variables that say of what job a process is part, which a job
        submitted from there must not inherit; and variables that it must.
    task_prefixes
        Prefixes of the variables that say to a program that it is one task of several.
    on_all_nodes
        Words before a command that run it once on every node of the job they are in.
    step_options
        Options after these words, of the number of nodes, the cores to use on each
        (None: all), and whether the job is held by a shell, which may use them too.
    passes_environment
        Commands started so have the environment of the job's script, ``PATH`` included.
    first_host
        Shell expression for the first node of a job, in its script; empty: none, so a
        job of several nodes cannot be started.
    hosts
        Shell expression for all nodes of a job, in its script, the first one first.
    on_each_device
        Words before a command that run it once for each device, of the number of nodes
        and of devices on each; empty: it has no such words.
    """

    name: str
    site: str
    client: str
    directive: str
    queue_noun: str
    programs: tuple[str, ...]
    survey_program: str
    reserved_options: re.Pattern[str]
    log_options: Callable[[Path], tuple[str, ...]]
    after_job: str
    job_variable: str
    on_all_nodes: tuple[str, ...]
    options_of: Callable[[str], Sequence[str]] = _one_option
    step_options: Callable[[int, int | None, bool], list[str]] = _no_options
    passes_environment: bool = True
    first_host: str = ""
    hosts: str = ""
    on_each_device: Callable[[int, int], str] = _no_tasks
    submit_for_id: tuple[str, ...] = ()
    after_failed_jobs: str = ""
    submitted_from: str = ""
    test_submission: tuple[str, ...] = ()
    excluding_options: tuple[tuple[str, re.Pattern[str]], ...] = ()
    refused_in_logs: re.Pattern[str] | None = None
    num_held_nodes: Callable[[Environment], int | None] = _is_not_said
    job_prefixes: tuple[str, ...] = ()
    kept_variables: tuple[str, ...] = ()
    task_prefixes: tuple[str, ...] = ()

    def is_of_job(self, variable: str) -> bool:
        """Tell whether an environment variable identifies the job of a process."""
        is_prefixed = variable.startswith(self.job_prefixes)
        return is_prefixed and variable not in self.kept_variables

    def start_on_all(
        self,
        words: list[str],
        num_nodes: int,
        *,
        cores: int | None = None,
        in_held_job: bool = False,
    ) -> list[str]:
        """Return the command that runs a script of bash once on each node of a job.

        Parameters
        ----------
        words
            The script and its arguments.
        num_nodes
            Nodes of the job.
        cores
            Cores to use on each; default: all that the job has.
        in_held_job
            The job is held by a shell, which may be a step of it itself.
        """
        # Where tasks have no PATH, bash is named by its own.
        shell = "bash" if self.passes_environment else "/bin/bash"
        options = self.step_options(num_nodes, cores, in_held_job)
        return [*self.on_all_nodes, *options, shell, *words]


def _options(directive: str, flags: frozenset[str]) -> Iterator[tuple[str, str]]:
    """Yield the options of a directive with their values, as getopt reads them."""
    words = iter(_words(directive))
    for word in words:
        name, _, value = word.partition("=")
        if word.startswith("--"):
            needs_value = "=" not in word and name not in flags
            yield name, next(words, "") if needs_value else value
        elif word.startswith("-"):
            letters = word[1:]
            while letters and f"-{letters[0]}" in flags:
                yield f"-{letters[0]}", ""
                letters = letters[1:]
            if letters:
                yield f"-{letters[0]}", letters[1:] or next(words, "")


def _words(directive: str) -> list[str]:
    try:
        return shlex.split(directive)
    except ValueError:  # a quote that is not closed
        return directive.split()


_SBATCH_FLAGS = frozenset(
    "-h -H -I -k -O -Q -s -v -V -W --contiguous --exclusive --get-user-env --help "
    "--hold --ignore-pbs --nice --no-kill --no-requeue --overcommit --oversubscribe "
    "--parsable --propagate --quiet --reboot --requeue --spread-job --test-only "
    "--usage --use-min-nodes --verbose --version --wait".split()
)


def _slurm_options(directive: str) -> Sequence[str]:
    pairs = _options(directive, _SBATCH_FLAGS)
    return [
        f"{name}={value}" if name.startswith("--") else f"{name} {value}"
        for name, value in pairs
    ]


_QSUB_FLAGS = frozenset("-f -h -I -V -X -z --version".split())


def _pbs_options(directive: str) -> Sequence[str]:
    return [
        f"{name} {each.strip()}"
        for name, value in _options(directive, _QSUB_FLAGS)
        for each in (value.split(",") if name == "-l" else [value])
    ]


def _slurm_log(log: Path) -> tuple[str, ...]:
    return ("--no-requeue", f"--output={shlex.quote(str(log))}")


def _slurm_held_nodes(environment: Environment) -> int | None:
    return int(environment.get("SLURM_JOB_NUM_NODES", "1"))


def _srun_options(num_nodes: int, cores: int | None, in_held_job: bool) -> list[str]:
    options = [f"--nodes={num_nodes}", f"--ntasks={num_nodes}"]
    # A job that has lost a node cannot run what it was asked for: it ends whole.
    options += ["--ntasks-per-node=1", "--kill-on-bad-exit=1"]
    options += ["--overlap"] if in_held_job else []
    # srun does not take it over from the job since SLURM 22.05.
    return [*options, f"--cpus-per-task={cores}"] if cores else options


def _srun_tasks(num_nodes: int, devices_per_node: int) -> str:
    return f"srun --nodes={num_nodes} --ntasks-per-node={devices_per_node}"


_MEM_PER_CPU = re.compile(r"--mem-per-cpu\b")
_SLURM = BatchSystem(
    name="slurm",
    site="scalelab.site.slurm:SlurmSite",
    client="scalelab.cluster.batch.slurm:SlurmClient",
    directive="#SBATCH",
    queue_noun="partition",
    programs=("sbatch", "squeue", "scancel"),
    survey_program="sinfo",
    test_submission=("sbatch", "--test-only"),
    options_of=_slurm_options,
    reserved_options=re.compile(
        r"-[NntpAJCqoeaGc]\b|--(nodes|ntasks|ntasks-per-node|time|partition|account"
        r"|job-name|qos|constraint|gres=gpu|gpus|gpus-per-node|gpus-per-task|mem"
        r"|mem-per-gpu|cpus-per-task|exclusive|output|error|array|requeue|no-requeue)\b"
        r"(?!-)"
    ),
    # SLURM takes one of --mem, --mem-per-cpu and --mem-per-gpu.
    excluding_options=(
        ("memory_per_node", _MEM_PER_CPU),
        ("memory_per_gpu", _MEM_PER_CPU),
    ),
    refused_in_logs=re.compile(r"[%\\\n]"),
    log_options=_slurm_log,
    after_job="--dependency=afterany:{job_id}",
    job_variable="SLURM_JOB_ID",
    num_held_nodes=_slurm_held_nodes,
    job_prefixes=("SLURM_", "SBATCH_"),
    kept_variables=("SLURM_CONF",),
    task_prefixes=(
        "SBATCH_",
        "SLURM_CPU_BIND",
        "SLURM_LOCALID",
        "SLURM_NODEID",
        "SLURM_NPROCS",
        "SLURM_NTASKS",
        "SLURM_PROCID",
        "SLURM_STEP",
        "SLURM_TASKS",
    ),
    on_all_nodes=("srun",),
    step_options=_srun_options,
    first_host='$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
    hosts='$(scontrol show hostnames "$SLURM_JOB_NODELIST")',
    on_each_device=_srun_tasks,
    submit_for_id=("sbatch", "--parsable"),
    after_failed_jobs="--dependency=afternotok{job_ids} --kill-on-invalid-dep=yes",
)


def _pbs_log(log: Path) -> tuple[str, ...]:
    return ("-j oe", f"-o {log}")


def _pbs_held_nodes(environment: Environment) -> int | None:
    if "PBS_NODEFILE" not in environment:
        return None
    # A line per chunk and MPI process: a host may occur several times.
    return len(set(Path(environment["PBS_NODEFILE"]).read_text().split()))


_PBS = BatchSystem(
    name="pbs",
    site="scalelab.site.pbs:PbsSite",
    client="scalelab.cluster.batch.pbs:PbsClient",
    directive="#PBS",
    queue_noun="queue",
    programs=("qsub", "qstat", "qdel"),
    survey_program="pbsnodes",
    options_of=_pbs_options,
    reserved_options=re.compile(
        r"-[qANroejJ]\b|-l (select|nodes|walltime|place|ngpus|ncpus|mem)\b"
    ),
    refused_in_logs=re.compile(r"[\s'\"\\]|[^\x00-\x7f]"),
    log_options=_pbs_log,
    after_job="-W depend=afterany:{job_id}",
    job_variable="PBS_JOBID",
    num_held_nodes=_pbs_held_nodes,
    on_all_nodes=("pbsdsh", "--"),
    passes_environment=False,
    first_host='$(head -n 1 "$PBS_NODEFILE")',
    hosts='$(uniq "$PBS_NODEFILE")',
    submit_for_id=("qsub",),
    after_failed_jobs="-W depend=afternotok{job_ids}",
    submitted_from="$PBS_O_WORKDIR",
)

BATCH_SYSTEMS = Registry(
    "scalelab.batch_systems", BatchSystem, key="scheduler", built_in=(_SLURM, _PBS)
)


def system_of_job(environment: Environment) -> BatchSystem | None:
    """Return the batch system in whose job a process runs; None: it is in no job."""
    systems = (each for each in BATCH_SYSTEMS if environment.get(each.job_variable))
    return next(systems, None)
