"""A batch job as its batch system accounts for it, while it runs or afterwards."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class AccountedJob:
    """What a batch job asked for, and what it used.

    Parameters
    ----------
    job_id
        As the batch system numbers it; of an array, of one of its tasks.
    state
        In the words of the batch system, such as ``COMPLETED`` or ``TIMEOUT``.
    did_complete
        Whether it ended by itself, and well.
    num_gpus
        Devices that it held; 0: it asked for none.
    gpu_type
        Their model, as the batch system calls it; None: it does not say.
    submitted_s, started_s
        Since 1970; None: not known, or it has not started.
    elapsed_s, limit_s
        Time since its start, and its time limit; None: it has none.
    cpu_s
        Processor seconds of all its cores.
    memory_asked_bytes, memory_used_bytes
        Of all nodes together; the latter a peak, None: not known.
    gpu_utilization
        Mean share of time in which its devices computed, in [0, 1]; None: the batch
        system does not know.
    log
        What it printed; None: not known.
    """

    job_id: str
    name: str
    state: str
    did_complete: bool
    num_nodes: int
    num_cores: int
    num_gpus: int
    gpu_type: str | None
    submitted_s: float | None
    started_s: float | None
    elapsed_s: float
    limit_s: float | None
    cpu_s: float | None
    memory_asked_bytes: float | None
    memory_used_bytes: float | None
    gpu_utilization: float | None
    log: str | None

    @property
    def num_devices(self) -> int:
        """GPUs; where there are none, cores."""
        return self.num_gpus or self.num_cores

    @property
    def queue_wait_s(self) -> float | None:
        """From when it was submitted to its start; None: not known."""
        if self.submitted_s is None or self.started_s is None:
            return None
        return self.started_s - self.submitted_s
