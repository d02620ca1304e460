import multiprocessing
import pickle
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from gang import RankFailure, identity, run_in_contexts, run_in_gang

from scalelab.errors import LaunchError
from scalelab.launch.progress import StreamWriter
from scalelab.training.context import claim_device, process_group


def talk(context: Any) -> Any:
    own = [context.rank + 1.0, 2.0]
    return context.agree(own), context.sum(own), context.gather(own)


@pytest.mark.slow
def test_ranks_agree_sum_and_gather(tmp_path: Path) -> None:
    results = run_in_contexts(3, talk, directory=tmp_path)
    for rank, (agreed, summed, gathered) in enumerate(results):
        assert agreed == [1.0, 2.0]
        assert summed == [6.0, 6.0]
        everybody = [[1.0, 2.0], [2.0, 2.0], [3.0, 2.0]]
        assert gathered == (everybody if rank == 0 else [])


class Trap:
    """What would leave a file behind where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def send_a_trap(context: Any) -> Any:
    try:
        return context.gather(Trap(context.directory / "sprung"))
    except pickle.UnpicklingError as error:
        return str(error)


@pytest.mark.slow
def test_nothing_that_a_rank_receives_is_executed(tmp_path: Path) -> None:
    first, second = run_in_contexts(2, send_a_trap, directory=tmp_path)
    assert "Weights only load failed" in first
    assert second == []
    assert not (tmp_path / "sprung").exists()


def join_over_tcp(who: Any, _rendezvous: Any, port: Any) -> Any:
    address = f"tcp://127.0.0.1:{port}"
    total = torch.ones(1)
    for name in ("first", "second"):
        with process_group(who, address, torch.device("cpu"), name):
            dist.all_reduce(total)
        dist.destroy_process_group()
    return total.item()


def serve(port_pipe: Any, done: Any) -> Any:
    store = dist.TCPStore(
        "127.0.0.1",
        0,
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=60),
    )
    port_pipe.send(store.port)
    done.recv()


@pytest.mark.slow
def test_ranks_meet_at_a_store_served_elsewhere_twice(tmp_path: Path) -> None:
    forkserver = multiprocessing.get_context("forkserver")
    ports, port_pipe = forkserver.Pipe(duplex=False)
    waiting, done = forkserver.Pipe(duplex=False)
    server = forkserver.Process(target=serve, args=(port_pipe, waiting))
    server.start()
    try:
        assert ports.poll(60), "the store did not start"
        port = ports.recv()
        assert run_in_gang(2, join_over_tcp, port, directory=tmp_path) == [4.0, 4.0]
    finally:
        done.send("stop")
        server.join()


def fail_on_the_second_rank(context: Any) -> Any:
    if context.rank == 1:
        raise ValueError("no good")
    context.agree([0.0])


def test_failing_rank_raises_without_waiting_for_the_others(tmp_path: Path) -> None:
    with pytest.raises(RankFailure, match=r"ValueError: no good|RuntimeError"):
        run_in_contexts(2, fail_on_the_second_rank, directory=tmp_path)


@pytest.mark.parametrize("rendezvous", ["udp://host:1", "tcp://host", "nowhere"])
def test_wrong_rendezvous_is_refused(rendezvous: str) -> None:
    with (
        pytest.raises(LaunchError, match=r"is not an address. Use file:///abs"),
        process_group(identity(0, 1), rendezvous, torch.device("cpu"), "test"),
    ):
        pass


def test_cpu_rank_claims_the_cpu() -> None:
    assert claim_device("cpu", 3) == torch.device("cpu")


def test_stream_writes_whole_lines_and_leaves_out_what_is_missing(
    tmp_path: Path,
) -> None:
    path = tmp_path / "stream.jsonl"
    path.write_text('{"step":1}\n')
    stream = StreamWriter(path)
    stream.append({"step": 2, "loss": float("nan"), "val_acc": None, "t": 0.5})
    assert path.read_text() == '{"step":1}\n'
    stream.flush()
    assert path.read_text() == '{"step":1}\n{"step":2,"t":0.5}\n'
    stream.append({"step": 3})
    stream.close()
    assert path.read_text().endswith('{"step":3}\n')


def test_stream_flushes_by_itself_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scalelab.launch.progress.FLUSH_INTERVAL_S", 0.0)
    stream = StreamWriter(tmp_path / "stream.jsonl")
    stream.append({"step": 1})
    assert (tmp_path / "stream.jsonl").read_text() == '{"step":1}\n'
    stream.close()


def test_stream_of_other_ranks_is_silent() -> None:
    stream = StreamWriter(None)
    stream.append({"step": 1})
    stream.close()
