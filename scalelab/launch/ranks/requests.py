"""The processes that one node starts for an attempt of a workload."""

from collections.abc import Iterator
from dataclasses import replace

from scalelab.kinds.strategies import strategy_of
from scalelab.launch.protocol import ProcessRequest, RankIdentity, RankTask
from scalelab.launch.rendezvous import network_environment
from scalelab.records.attempt import AttemptSpec


def rank_requests(
    spec: AttemptSpec, node_rank: int, *, entry: str, rendezvous: str, address: str
) -> tuple[ProcessRequest, ...]:
    """Return one request per rank of a node's share of an attempt.

    Node 0 also runs the parameter servers, whose ranks follow those of all nodes.
    """
    devices = spec.placement.shares[node_rank].device_ids
    first_rank = spec.placement.first_rank(node_rank)
    env = {
        **network_environment(rendezvous, address),
        # Local rank i finds its device as cuda:i; CPU ranks find none.
        "CUDA_VISIBLE_DEVICES": ",".join(devices) if spec.device_type == "cuda" else "",
        "OMP_NUM_THREADS": str(spec.threads_per_rank),
    }

    code = spec.program.code_directory
    ranks = tuple(
        ProcessRequest(
            rank=first_rank + local_rank,
            task=RankTask(
                entry=entry,
                spec=spec,
                identity=RankIdentity(
                    rank=first_rank + local_rank,
                    local_rank=local_rank,
                    world_size=spec.placement.world_size,
                    local_world_size=len(devices),
                    node_rank=node_rank,
                    num_nodes=len(spec.placement.shares),
                ),
                rendezvous=rendezvous,
                row=local_rank,
            ),
            cores=cores_of(spec, device),
            env=env,
            log=str(spec.files.log(first_rank + local_rank)),
            search_path=(code,) if code else (),
        )
        for local_rank, device in enumerate(devices)
    )
    return (*ranks, *(_server_requests(spec, ranks) if node_rank == 0 else ()))


def _server_requests(
    spec: AttemptSpec, ranks: tuple[ProcessRequest, ...]
) -> Iterator[ProcessRequest]:
    first, world_size = ranks[0], spec.placement.world_size
    task = first.task
    assert isinstance(task, RankTask)

    strategy = strategy_of(spec.trial.parallelism)
    for number in range(strategy.num_servers(world_size, spec.trial.options)):
        rank, row = world_size + number, len(ranks) + number
        identity = replace(task.identity, rank=rank, local_rank=row)
        yield replace(
            first,
            rank=rank,
            task=replace(task, identity=identity, row=row),
            cores=(),
            env={**first.env, "CUDA_VISIBLE_DEVICES": ""},
            log=str(spec.files.log(rank)),
        )


def cores_of(spec: AttemptSpec, device_id: str) -> tuple[int, ...]:
    """Return the cores that a rank on this device is pinned to; empty: not pinned."""
    # Ranks whose times are declared only wait, and may be many times the cores.
    is_pinned = spec.device_type == "cpu" and not spec.known.declares_times
    return (int(device_id),) if is_pinned else ()
