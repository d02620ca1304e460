"""A provision with a batch system that does as it is told, and a clock likewise."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import cast

from scalelab.cluster.batch.nodes import BatchNodes
from scalelab.cluster.batch.queue import JobState, JobSubmitted, JobView, QueueSeen
from scalelab.cluster.nodes import Node
from scalelab.cluster.watch import NodeLeft
from scalelab.experiment.trial import Trial
from scalelab.records.control.events import Event, Waiting
from scalelab.records.control.job_list import JobLine
from scalelab.scheduling.gangs import PartEnded
from scalelab.scheduling.pool import Pool
from scalelab.scheduling.provision.provisioner import Provision
from scalelab.scheduling.trial_queue import Request
from scalelab.site.choice import site_of
from scalelab.site.profile import Site

SITE = {
    "scheduler": "slurm",
    "device_type": "cpu",
    "gpus_per_node": 2,
    "start_timeout": "5s",
    "max_idle": "100s",
}


@dataclass
class Batch:
    """A batch system's jobs, as the test says."""

    site: Site
    requested: dict[str, int] = field(default_factory=dict)
    group_of: dict[str, str | None] = field(default_factory=dict)
    ended: list[str] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)
    num_looks: int = 0
    lines: list[JobLine] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)

    def request(self, num_nodes: int, group: str | None = None) -> str:
        name = f"run-{len(self.requested) + 1}"
        self.requested[name] = num_nodes
        self.group_of[name] = group
        return name

    def give_back(self, name: str, addresses: Iterable[str] = ()) -> None:
        self.ended.append(name)

    def forget(self, name: str) -> None:
        self.forgotten.append(name)

    def look(self) -> None:
        self.num_looks += 1

    def log_tail(self, name: str) -> str:
        return f"what {name} said"

    def write_list(self, jobs: Iterable[JobLine], waiting: Iterable[str]) -> None:
        self.lines, self.waiting = list(jobs), list(waiting)


class Clock:
    """A clock that goes on when it is told to."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s


class Scene:
    """A provision with its surroundings."""

    def __init__(
        self, clock: Clock, make_trial: Callable[..., Trial], **site: object
    ) -> None:
        self.clock = clock
        self.make_trial = make_trial
        self.batch = Batch(site_of({**SITE, **site}))
        self.events: list[Event] = []
        self.left: list[str] = []
        self.delivered: list[NodeLeft | PartEnded] = []
        expected = {
            group: (nodes.devices_per_node,) * (nodes.nodes or 4)
            for group, nodes in self.batch.site.groups.items()
        }
        self.pool = Pool(expected, self.events.append, timeout_s=1e9)
        self.provision = Provision(
            cast(BatchNodes, self.batch),
            self.pool,
            leave=self._leave,
            on_event=self.events.append,
            deliver=self.delivered.append,
        )
        self._num_trials = 0

    def _leave(self, address: str) -> None:
        self.left.append(address)
        self.pool.leave(address)

    def wait_for(
        self, *devices: int, duration_s: float = 1.0, group: str | None = None
    ) -> None:
        """Let a trial wait."""
        self._num_trials += 1
        trial = self.make_trial(self._num_trials, *devices)
        trial = replace(trial, node_group=group)
        self.pool.placers[group].queue.add(Request(self._num_trials, trial, duration_s))

    def begin(self, *trials: tuple[int, ...], duration_s: float = 1.0) -> None:
        """Let trials wait, by their devices; take the jobs requested for them."""
        for devices in trials:
            self.wait_for(*devices, duration_s=duration_s)
        self.tick()
        self.submitted()

    def place(self) -> list[int]:
        """Start what can; return the requests' numbers."""
        placed = self.pool.place(self.clock.now_s)
        return [request.number for request, _ in placed]

    def tick(self, after_s: float = 1.0, *, is_stopped: bool = False) -> None:
        self.clock.now_s += after_s
        self.provision.tick(is_stopped=is_stopped)

    def submitted(self) -> None:
        """Take all that was requested."""
        for index, name in enumerate(self.batch.requested):
            self.provision.take(JobSubmitted(name, str(index + 1)))

    def see(self, **views: JobView) -> None:
        """Show jobs, ``run_1`` for ``run-1``; those not named run."""
        shown = {name.replace("_", "-"): view for name, view in views.items()}
        alive = [name for name in self.batch.requested if name not in self.batch.ended]
        for name in alive:
            shown.setdefault(name, JobView(state=JobState.RUNNING))
        self.provision.take(QueueSeen(shown, frozenset(shown)))

    def up(self, name: str, *hosts: str) -> None:
        """Let the nodes of a job answer."""
        group = self.batch.group_of.get(name)
        num_devices = self.batch.site.groups[group].devices_per_node
        for host in hosts:
            node = Node(
                name=f"{host}/{name}",
                address=f"tls://{host}:{name}",
                host=host,
                device_ids=tuple(map(str, range(num_devices))),
                device_name="a core",
                num_cores=num_devices,
                memory_bytes=1,
                group=group,
            )
            self.pool.join(node)

    @property
    def said(self) -> list[str]:
        return [event.reason for event in self.events if isinstance(event, Waiting)]
