"""Batch systems: programs that queue jobs and hand out a cluster's nodes."""

import re
import shlex
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from scalelab.errors import ClusterError
from scalelab.kinds.registry import Registry

Environment = Mapping[str, str]


class BatchSystem(ABC):
    """A batch system: its job scripts, programs and environment.

    A class of its own sets the attributes that have no value here, and whatever else
    differs; an instance of it is the row of the registry.

    Attributes
    ----------
    name
        Value of ``scheduler`` in a site profile.
    site
        Path, ``module:attribute``, of the settings of its sites, which render the
        request for nodes; a :class:`~scalelab.site.batch_site.BatchSite`.
    client
        Path of what runs its programs; a
        :class:`~scalelab.cluster.batch.queue.BatchClient`.
    directive
        Beginning of the lines of a job script that it reads, e.g. ``#SBATCH``.
    queue_noun
        What it calls a queue, which is also the setting that names one.
    programs
        Programs that submit, show and cancel jobs; the first one submits.
    survey_program
        Program that lists its nodes: where it can be run, this batch system is here.
    reserved_options
        Beginning of the options that ScaleLab writes itself, so that users must not.
    after_job
        Option that makes a job wait for the end of another, ``{job_id}``.
    job_variable
        Environment variable that holds the id of the job a process is in.
    on_all_nodes
        Words before a command that run it once on every node of the job they are in.
    passes_environment
        Commands started so have the environment of the job's script, ``PATH`` included.
    first_host
        Shell expression for the first node of a job, in its script; empty: none, so a
        job of several nodes cannot be started.
    hosts
        Shell expression for all nodes of a job, in its script, the first one first.
    submit_for_id
        Words before a script that submit it and print nothing but the job's id.
    after_failed_jobs
        Options that make a job wait until each of several jobs has ended without
        success, and drop it when one of them succeeds; ``{job_ids}`` has a colon before
        each id. Empty: there are none.
    submitted_from
        Shell expression for the directory a job was submitted from; empty: a job's
        script starts there.
    test_submission
        Words before a script that ask whether a job would be taken, without
        submitting it; empty: it cannot be asked.
    excluding_options
        Setting, and beginning of the options that must not stand beside it.
    refused_in_logs
        Finds the letters that it does not take in the path of a log; None: it takes
        all.
    job_prefixes, kept_variables
        Prefixes of the variables that say of what job a process is part, which a job
        submitted from there must not inherit; and variables that it must.
    task_prefixes
        Prefixes of the variables that say to a program that it is one task of several.
    """

    name: str
    site: str
    client: str
    directive: str
    queue_noun: str
    programs: tuple[str, ...]
    survey_program: str
    reserved_options: re.Pattern[str]
    after_job: str
    job_variable: str
    on_all_nodes: tuple[str, ...]
    passes_environment: bool = True
    first_host: str = ""
    hosts: str = ""
    submit_for_id: tuple[str, ...] = ()
    after_failed_jobs: str = ""
    submitted_from: str = ""
    test_submission: tuple[str, ...] = ()
    excluding_options: tuple[tuple[str, re.Pattern[str]], ...] = ()
    refused_in_logs: re.Pattern[str] | None = None
    job_prefixes: tuple[str, ...] = ()
    kept_variables: tuple[str, ...] = ()
    task_prefixes: tuple[str, ...] = ()

    @abstractmethod
    def log_options(self, log: Path) -> tuple[str, ...]:
        """Return the options that send all that a job says to a file.

        With them the job is not run again either: it would be there beside the one that
        replaces it.
        """

    def options_of(self, directive: str) -> Sequence[str]:
        """Return the options of a directive, each in its one form.

        ``-N2`` and ``--nodes 2`` become ``-N 2`` and ``--nodes=2``. By default a
        directive is one option, which is written in one way.
        """
        return (directive.strip(),)

    def num_held_nodes(self, environment: Environment) -> int | None:
        """Return the number of nodes of the job of this environment; None: not said."""
        return None

    def step_options(
        self, num_nodes: int, cores: int | None, in_held_job: bool
    ) -> list[str]:
        """Return the options after ``on_all_nodes``.

        Parameters
        ----------
        num_nodes
            Nodes of the job.
        cores
            Cores to use on each; None: all that the job has.
        in_held_job
            The job is held by a shell, which may be a step of it itself.
        """
        return []

    def on_each_device(self, num_nodes: int, devices_per_node: int) -> str:
        """Return the words before a command that run it once for each device.

        Empty: it starts no tasks for devices.
        """
        return ""

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

        ``words`` are the script and its arguments; for the others see
        :meth:`step_options`.
        """
        # Where tasks have no PATH, bash is named by its own.
        shell = "bash" if self.passes_environment else "/bin/bash"
        options = self.step_options(num_nodes, cores, in_held_job)
        return [*self.on_all_nodes, *options, shell, *words]


def _options(directive: str, flags: frozenset[str]) -> Iterator[tuple[str, str]]:
    """Yield the options of a directive with their values, as getopt reads them."""
    try:
        words = iter(shlex.split(directive))
    except ValueError:  # a quote that is not closed
        words = iter(directive.split())
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


_SBATCH_FLAGS = frozenset(
    "-h -H -I -k -O -Q -s -v -V -W --contiguous --exclusive --get-user-env --help "
    "--hold --ignore-pbs --nice --no-kill --no-requeue --overcommit --oversubscribe "
    "--parsable --propagate --quiet --reboot --requeue --spread-job --test-only "
    "--usage --use-min-nodes --verbose --version --wait".split()
)
_QSUB_FLAGS = frozenset("-f -h -I -V -X -z --version".split())
_MEM_PER_CPU = re.compile(r"--mem-per-cpu\b")


class _Slurm(BatchSystem):
    name = "slurm"
    site = "scalelab.site.slurm:SlurmSite"
    client = "scalelab.cluster.batch.slurm:SlurmClient"
    directive = "#SBATCH"
    queue_noun = "partition"
    programs = ("sbatch", "squeue", "scancel")
    survey_program = "sinfo"
    test_submission = ("sbatch", "--test-only")
    reserved_options = re.compile(
        r"-[NntpAJCqoeaGc]\b|--(nodes|ntasks|ntasks-per-node|time|partition|account"
        r"|job-name|qos|constraint|gres=gpu|gpus|gpus-per-node|gpus-per-task|mem"
        r"|mem-per-gpu|cpus-per-task|exclusive|output|error|array|requeue|no-requeue)\b"
        r"(?!-)"
    )
    # SLURM takes one of --mem, --mem-per-cpu and --mem-per-gpu.
    excluding_options = (
        ("memory_per_node", _MEM_PER_CPU),
        ("memory_per_gpu", _MEM_PER_CPU),
    )
    refused_in_logs = re.compile(r"[%\\\n]")
    after_job = "--dependency=afterany:{job_id}"
    job_variable = "SLURM_JOB_ID"
    job_prefixes = ("SLURM_", "SBATCH_")
    kept_variables = ("SLURM_CONF",)
    task_prefixes = (
        "SBATCH_",
        "SLURM_CPU_BIND",
        "SLURM_LOCALID",
        "SLURM_NODEID",
        "SLURM_NPROCS",
        "SLURM_NTASKS",
        "SLURM_PROCID",
        "SLURM_STEP",
        "SLURM_TASKS",
    )
    on_all_nodes = ("srun",)
    first_host = '$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'
    hosts = '$(scontrol show hostnames "$SLURM_JOB_NODELIST")'
    submit_for_id = ("sbatch", "--parsable")
    after_failed_jobs = "--dependency=afternotok{job_ids} --kill-on-invalid-dep=yes"

    def log_options(self, log: Path) -> tuple[str, ...]:
        return ("--no-requeue", f"--output={shlex.quote(str(log))}")

    def options_of(self, directive: str) -> Sequence[str]:
        return [
            f"{name}={value}" if name.startswith("--") else f"{name} {value}"
            for name, value in _options(directive, _SBATCH_FLAGS)
        ]

    def num_held_nodes(self, environment: Environment) -> int | None:
        return int(environment.get("SLURM_JOB_NUM_NODES", "1"))

    def step_options(
        self, num_nodes: int, cores: int | None, in_held_job: bool
    ) -> list[str]:
        options = [f"--nodes={num_nodes}", f"--ntasks={num_nodes}"]
        # A job that has lost a node cannot run what it was asked for: it ends whole.
        options += ["--ntasks-per-node=1", "--kill-on-bad-exit=1"]
        options += ["--overlap"] if in_held_job else []
        # srun does not take it over from the job since SLURM 22.05.
        return [*options, f"--cpus-per-task={cores}"] if cores else options

    def on_each_device(self, num_nodes: int, devices_per_node: int) -> str:
        return f"srun --nodes={num_nodes} --ntasks-per-node={devices_per_node}"


class _Pbs(BatchSystem):
    # PBS Professional, OpenPBS and Torque
    name = "pbs"
    site = "scalelab.site.pbs:PbsSite"
    client = "scalelab.cluster.batch.pbs:PbsClient"
    directive = "#PBS"
    queue_noun = "queue"
    programs = ("qsub", "qstat", "qdel")
    survey_program = "pbsnodes"
    reserved_options = re.compile(
        r"-[qANroejJ]\b|-l (select|nodes|walltime|place|ngpus|ncpus|mem)\b"
    )
    refused_in_logs = re.compile(r"[\s'\"\\]|[^\x00-\x7f]")
    after_job = "-W depend=afterany:{job_id}"
    job_variable = "PBS_JOBID"
    on_all_nodes = ("pbsdsh", "--")
    passes_environment = False
    first_host = '$(head -n 1 "$PBS_NODEFILE")'
    hosts = '$(uniq "$PBS_NODEFILE")'
    submit_for_id = ("qsub",)
    after_failed_jobs = "-W depend=afternotok{job_ids}"
    submitted_from = "$PBS_O_WORKDIR"

    def log_options(self, log: Path) -> tuple[str, ...]:
        return ("-j oe", f"-o {log}")

    def options_of(self, directive: str) -> Sequence[str]:
        return [
            f"{name} {each.strip()}"
            for name, value in _options(directive, _QSUB_FLAGS)
            for each in (value.split(",") if name == "-l" else [value])
        ]

    def num_held_nodes(self, environment: Environment) -> int | None:
        if "PBS_NODEFILE" not in environment:
            return None
        # A line per chunk and MPI process: a host may occur several times.
        return len(set(Path(environment["PBS_NODEFILE"]).read_text().split()))


BATCH_SYSTEMS = Registry(
    "scalelab.batch_systems",
    BatchSystem,  # type: ignore[type-abstract]
    key="scheduler",
    built_in=(_Slurm(), _Pbs()),
)


def system_of_job(environment: Environment) -> BatchSystem | None:
    """Return the batch system in whose job a process runs; None: it is in no job."""
    systems = (each for each in BATCH_SYSTEMS if environment.get(each.job_variable))
    return next(systems, None)


def held_allocation(environment: Environment) -> tuple[BatchSystem, str, int]:
    """Return the batch system, name and nodes of the job that this process runs in.

    Examples
    --------
    >>> held_allocation({"SLURM_JOB_ID": "17", "SLURM_JOB_NUM_NODES": "4"})[1:]
    ('job-17', 4)
    """
    if system := system_of_job(environment):
        # An id may end in the name of a server.
        number = environment[system.job_variable].partition(".")[0]
        if num_nodes := system.num_held_nodes(environment):
            return system, f"job-{number}", num_nodes
        raise ClusterError(
            f"scheduler=allocation: {system.name} does not say which nodes job "
            f"{number} has. Write scheduler: {system.name}."
        )
    variables = " or ".join(each.job_variable for each in BATCH_SYSTEMS)
    raise ClusterError(
        f"scheduler=allocation, but this process runs in no batch job: no {variables} "
        "is set. Sweep inside a job, or name the batch system as the scheduler: "
        f"{' or '.join(BATCH_SYSTEMS.names)}."
    )
