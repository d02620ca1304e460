"""A declared machine, and a model of its step time (pure functions).

The laws are tested against it, so nothing here imports torch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

from scalelab.errors import SpecError


@dataclass(frozen=True, kw_only=True, slots=True)
class DeclaredMachine:
    """Devices and links of an emulated cluster.

    Parameters
    ----------
    imbalance
        The slowest rank computes ``1 + imbalance`` times as long as the fastest; the
        others lie evenly between.
    noise
        Standard deviation of the logarithm of a step's time; all ranks share a step's
        noise, and its mean is 1.
    """

    sample_time_s: float = 0.001
    fixed_time_s: float = 0.005
    gradient_bytes: int = 100_000_000
    intra_latency_s: float = 1e-5
    intra_bandwidth_bytes_per_s: float = 1e11
    inter_latency_s: float = 5e-5
    inter_bandwidth_bytes_per_s: float = 1e10
    overlap: float = 0.0
    imbalance: float = 0.0
    noise: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name.endswith("bandwidth_bytes_per_s") and not value > 0:
                raise SpecError(
                    f"{field.name}={value!r} must be above 0.", code="not_positive"
                )
            if not value >= 0:
                raise SpecError(
                    f"{field.name}={value!r} must be at least 0.", code="negative"
                )
        if self.overlap > 1:
            raise SpecError(
                f"overlap={self.overlap!r} must be at most 1.", code="not_a_share"
            )


def ring_time(
    num_members: int,
    num_bytes: float,
    *,
    latency_s: float,
    bandwidth_bytes_per_s: float,
) -> float:
    """Return the seconds of a ring all-reduce among ``n`` members.

    ``2 (n - 1) latency + 2 (n - 1) / n * bytes / bandwidth``.

    References
    ----------
    Patarasu and Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters of
    workstations".

    Examples
    --------
    >>> ring_time(4, 1000, latency_s=0.5, bandwidth_bytes_per_s=100)
    18.0
    """
    messages = 2 * (num_members - 1)
    seconds_per_message = latency_s + num_bytes / num_members / bandwidth_bytes_per_s
    return messages * seconds_per_message


def exchange_time(machine: DeclaredMachine, devices_per_node: Sequence[int]) -> float:
    """Return the seconds of one gradient exchange, hidden or not.

    A ring within the largest node, then one between the nodes.
    """
    within = ring_time(
        max(devices_per_node),
        machine.gradient_bytes,
        latency_s=machine.intra_latency_s,
        bandwidth_bytes_per_s=machine.intra_bandwidth_bytes_per_s,
    )

    between = ring_time(
        len(devices_per_node),
        machine.gradient_bytes,
        latency_s=machine.inter_latency_s,
        bandwidth_bytes_per_s=machine.inter_bandwidth_bytes_per_s,
    )
    return within + between


def compute_time(
    machine: DeclaredMachine,
    *,
    local_batch_size: int,
    gradient_accumulation_steps: int = 1,
    slowness: float = 1.0,
) -> float:
    """Return a rank's forward and backward seconds per step."""
    passes = machine.fixed_time_s + local_batch_size * machine.sample_time_s
    return gradient_accumulation_steps * passes * slowness


def declared_step_time(
    machine: DeclaredMachine,
    *,
    local_batch_size: int,
    devices_per_node: Sequence[int],
    gradient_accumulation_steps: int = 1,
) -> float:
    """Return the true mean step time of an emulated trial, in seconds.

    The slowest rank's computation, and of the exchange what is left when ``overlap`` of
    it, but no more than the last forward-backward pass, is hidden.

    Examples
    --------
    Two devices on a node: (1 + 4 * 0.5) s of computation and 2 * (0.1 + 200 / 2 / 100)
    s of exchange:

    >>> machine = DeclaredMachine(
    ...     sample_time_s=0.5, fixed_time_s=1.0, gradient_bytes=200,
    ...     intra_latency_s=0.1, intra_bandwidth_bytes_per_s=100)
    >>> round(declared_step_time(machine, local_batch_size=4, devices_per_node=[2]), 9)
    5.2
    """
    slowness = 1.0 + (machine.imbalance if sum(devices_per_node) > 1 else 0.0)
    last_pass_s = compute_time(
        machine, local_batch_size=local_batch_size, slowness=slowness
    )
    exchange_s = exchange_time(machine, devices_per_node)
    hidden_s = min(machine.overlap * exchange_s, last_pass_s)
    return gradient_accumulation_steps * last_pass_s + exchange_s - hidden_s
