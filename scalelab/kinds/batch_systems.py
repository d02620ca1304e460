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
    job_variable
        Environment variable that holds the id of the job a process is in.
    passes_environment
        Commands started so have the environment of the job's script, ``PATH`` included.
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
    job_id_form
        Matches the ids of its jobs.
    """

    name: str
    site: str
    client: str
    directive: str
    queue_noun: str
    programs: tuple[str, ...]
    survey_program: str
    reserved_options: re.Pattern[str]
    job_variable: str
    passes_environment: bool = True
    test_submission: tuple[str, ...] = ()
    excluding_options: tuple[tuple[str, re.Pattern[str]], ...] = ()
    refused_in_logs: re.Pattern[str] | None = None
    job_prefixes: tuple[str, ...] = ()
    kept_variables: tuple[str, ...] = ()
    task_prefixes: tuple[str, ...] = ()
    job_id_form: re.Pattern[str] = re.compile(r"\d+")

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

    @abstractmethod
    def after(self, job_id: str) -> str:
        """Return the option that makes a job wait for the end of another."""

    @abstractmethod
    def once_per_node(
        self, num_nodes: int, cores: int | None = None, *, in_held_job: bool = False
    ) -> str:
        """Return what runs the command behind it once on each node of its job.

        It is text for a shell and not quoted again, such as ``blaunch -z
        "$LSB_HOSTS"``.

        Parameters
        ----------
        num_nodes
            Nodes of the job.
        cores
            Cores to use on each; None: all that the job has.
        in_held_job
            The job is held by a shell, which may be a step of it itself.
        """

    def hosts(self) -> str:
        """Return a shell expression for all nodes of a job, in its script.

        The first one comes first. Empty: there is none, so that a recommended job of
        several nodes cannot be started.
        """
        return ""

    def first_host(self) -> str:
        """Return a shell expression for the first node of a job, in its script."""
        return ""

    def to_submission_directory(self) -> str:
        """Return the line that enters the directory that a job was submitted from.

        Empty: a job's script starts there.
        """
        return ""

    def submit_after_failures(self) -> str:
        """Return the command of a script that submits the script, ``$0``, once more.

        It prints the job's id alone. The job waits until each of the jobs in ``$jobs``,
        each with a colon before it, has ended without success, and is dropped when one
        of them succeeds. Empty: there is no such command.
        """
        return ""

    def on_each_device(self, num_nodes: int, devices_per_node: int) -> str:
        """Return the words before a command that run it once for each device.

        Empty: it starts no tasks for devices.
        """
        return ""

    def is_of_job(self, variable: str) -> bool:
        """Tell whether an environment variable identifies the job of a process."""
        return (
            variable.startswith(self.job_prefixes)
            and variable not in self.kept_variables
        )

    def start_on_all(
        self,
        words: list[str],
        num_nodes: int,
        *,
        cores: int | None = None,
        in_held_job: bool = False,
    ) -> str:
        """Return the shell line that runs a script of bash once on each node of a job.

        ``words`` are the script and its arguments; for the others see
        :meth:`once_per_node`.
        """
        # Where tasks have no PATH, bash is named by its own.
        shell = "bash" if self.passes_environment else "/bin/bash"
        start = self.once_per_node(num_nodes, cores, in_held_job=in_held_job)
        return f"exec {start} {shlex.join([shell, *words])}"


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
    job_variable = "SLURM_JOB_ID"
    job_prefixes = ("SLURM_", "SBATCH_")
    # with a task of an array, or a component
    job_id_form = re.compile(r"\d+(?:[_+]\d+)?")
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

    def log_options(self, log: Path) -> tuple[str, ...]:
        return ("--no-requeue", f"--output={shlex.quote(str(log))}")

    def options_of(self, directive: str) -> Sequence[str]:
        return [
            f"{name}={value}" if name.startswith("--") else f"{name} {value}"
            for name, value in _options(directive, _SBATCH_FLAGS)
        ]

    def num_held_nodes(self, environment: Environment) -> int | None:
        return int(environment.get("SLURM_JOB_NUM_NODES", "1"))

    def after(self, job_id: str) -> str:
        return f"--dependency=afterany:{job_id}"

    def once_per_node(
        self, num_nodes: int, cores: int | None = None, *, in_held_job: bool = False
    ) -> str:
        # A job that has lost a node cannot run what it was asked for: it ends whole.
        start = (
            f"srun --nodes={num_nodes} --ntasks={num_nodes} --ntasks-per-node=1 "
            "--kill-on-bad-exit=1"
        )
        if in_held_job:
            start += " --overlap"
        # srun does not take it over from the job since SLURM 22.05.
        return f"{start} --cpus-per-task={cores}" if cores else start

    def hosts(self) -> str:
        return '$(scontrol show hostnames "$SLURM_JOB_NODELIST")'

    def first_host(self) -> str:
        return '$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'

    def submit_after_failures(self) -> str:
        after = "--dependency=afternotok$jobs --kill-on-invalid-dep=yes"
        return f'sbatch --parsable ${{jobs:+{after}}} "$0"'

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
    # with a task of an array, and its server
    job_id_form = re.compile(r"\d+(?:\[\d*\])?(?:\.[\w.-]+)?")
    job_variable = "PBS_JOBID"
    passes_environment = False

    def log_options(self, log: Path) -> tuple[str, ...]:
        return ("-j oe", f"-o {log}")

    def options_of(self, directive: str) -> Sequence[str]:
        return [
            f"{name} {resource.strip()}"
            for name, value in _options(directive, _QSUB_FLAGS)
            for resource in (value.split(",") if name == "-l" else [value])
        ]

    def num_held_nodes(self, environment: Environment) -> int | None:
        if "PBS_NODEFILE" not in environment:
            return None
        # A line per chunk and MPI process: a host may occur several times.
        return len(set(Path(environment["PBS_NODEFILE"]).read_text().split()))

    def after(self, job_id: str) -> str:
        return f"-W depend=afterany:{job_id}"

    def once_per_node(
        self, num_nodes: int, cores: int | None = None, *, in_held_job: bool = False
    ) -> str:
        return "pbsdsh --"

    def hosts(self) -> str:
        return '$(uniq "$PBS_NODEFILE")'

    def first_host(self) -> str:
        return '$(head -n 1 "$PBS_NODEFILE")'

    def to_submission_directory(self) -> str:
        return 'cd "$PBS_O_WORKDIR"'

    def submit_after_failures(self) -> str:
        return 'qsub ${jobs:+-W depend=afternotok$jobs} "$0"'


BATCH_SYSTEMS = Registry(
    "scalelab.batch_systems",
    BatchSystem,  # type: ignore[type-abstract]
    key="scheduler",
    built_in=(_Slurm(), _Pbs()),
)


def system_of_job(environment: Environment) -> BatchSystem | None:
    """Return the batch system in whose job a process runs; None: it is in no job."""
    systems = (
        system for system in BATCH_SYSTEMS if environment.get(system.job_variable)
    )
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

    variables = " or ".join(system.job_variable for system in BATCH_SYSTEMS)
    raise ClusterError(
        f"scheduler=allocation, but this process runs in no batch job: no {variables} "
        "is set. Sweep inside a job, or name the batch system as the scheduler: "
        f"{' or '.join(BATCH_SYSTEMS.names)}."
    )
