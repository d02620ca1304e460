from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from gang import HERE, on, run_in_contexts, run_trial, stream, throughput_trial
from torch import nn

from scalelab.experiment.trial import LearningRate, Measurement, Trial, TrialKind
from scalelab.inputs.target import MetricMode, Target
from scalelab.training.engines.ddp import DdpModel
from scalelab.training.engines.power_sgd import PowerSgd
from scalelab.training.engines.spread import Observers
from scalelab.training.seeds import parameter_generator

SHAPE = (12, 4, 3)
"""Of the compressed parameter: a matrix of 12 x 12."""
RATE = LearningRate(base=0.1, at_batch=64, rule="linear", warmup_samples=0, value=0.1)
NOBODY = Observers(on_own_gradients_ready=lambda: None)


class Linear(nn.Module):
    """A matrix, a vector and a small matrix whose gradients are what is fed in."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.large = nn.Parameter(torch.zeros(SHAPE, dtype=dtype))
        self.vector = nn.Parameter(torch.zeros(3, dtype=dtype))
        self.small = nn.Parameter(torch.zeros(2, 2, dtype=dtype))

    def forward(self, *gradients: torch.Tensor) -> torch.Tensor:
        pairs = zip(self.parameters(), gradients, strict=True)
        return torch.stack([(p * g.to(p)).sum() for p, g in pairs]).sum()


class Ranks:
    """A model spread over this rank and others, which exchange products."""

    def __init__(
        self, rank: int, dtype: torch.dtype = torch.float32, **how: Any
    ) -> None:
        self.model = Linear(dtype)
        self.power_sgd = PowerSgd(self.model.parameters(), rank=rank, seed=5)
        self.spread = DdpModel(
            self.model,
            torch.device("cpu"),
            how.pop("observers", NOBODY),
            exchange=self.power_sgd.exchange,
            exchanges_alone=True,
            **how,
        )

    def step(self, *gradients: torch.Tensor) -> list[torch.Tensor]:
        """Exchange gradients of this rank; return what all ranks got."""
        self.model.zero_grad(set_to_none=True)
        loss = self.spread.model(*gradients)
        self.spread.watch(loss)
        loss.backward()
        return [p.grad.detach().clone() for p in self.model.parameters()]

    @property
    def error(self) -> torch.Tensor:
        _, errors = self.power_sgd.state()
        return errors[0].view(SHAPE)


def drawn(rank: int, step: int) -> list[torch.Tensor]:
    """Return the gradients of a rank at a step."""
    generator = torch.Generator().manual_seed(100 * rank + step)
    return [torch.randn(s, generator=generator) for s in (SHAPE, (3,), (2, 2))]


def of_low_rank(context: Any) -> Any:
    """Exchange matrices of which each rank's has rank 1, by products of rank 2."""
    ranks, found = Ranks(2), []
    for step in range(2):
        generator = torch.Generator().manual_seed(step)
        left, right = (torch.randn(2, 12, generator=generator) for _ in range(2))
        own = torch.outer(left[context.rank], right[context.rank]).view(SHAPE)
        _, vector, small = drawn(context.rank, step)
        sent = ranks.step(own, vector, small)
        mean = (left.T @ right / 2).view(SHAPE)
        others = [drawn(rank, step)[1:] for rank in range(2)]
        plain = [(a + b) / 2 for a, b in zip(*others, strict=True)]
        found.append(
            [
                (sent[0] - mean).abs().max().item(),
                *(torch.equal(a, b) for a, b in zip(sent[1:], plain, strict=True)),
            ]
        )
    return found


def test_a_matrix_of_no_higher_rank_is_exchanged_as_it_is(tmp_path: Path) -> None:
    first, second = run_in_contexts(2, of_low_rank, directory=tmp_path)
    assert first == second
    for apart, vector_is_exact, small_is_exact in first:
        assert apart < 1e-5
        assert vector_is_exact
        assert small_is_exact


def many_steps(context: Any) -> Any:
    """Return what was sent in all, the error kept, and this rank's own gradients."""
    ranks = Ranks(1)
    sent, own = torch.zeros(SHAPE), torch.zeros(SHAPE)
    each_sent = []
    for step in range(6):
        gradients = drawn(context.rank, step)
        each_sent.append(ranks.step(*gradients)[0])
        sent += each_sent[-1]
        own += gradients[0]
    ranks_of_sent = [int(torch.linalg.matrix_rank(s.view(12, 12))) for s in each_sent]
    values = (sent, ranks.error, own, torch.stack(each_sent))
    return [value.tolist() for value in values], ranks_of_sent


def test_what_is_not_sent_is_kept_and_sent_later(tmp_path: Path) -> None:
    results = run_in_contexts(2, many_steps, directory=tmp_path)
    (sent, *_), ranks_of_sent = results[0]
    assert ranks_of_sent == [1] * 6
    errors = [np.array(error) for (_, error, *_), _ in results]
    own = [np.array(each) for (*_, each, _), _ in results]
    for error, each in zip(errors, own, strict=True):
        assert np.array(sent) + error == pytest.approx(each, abs=1e-4)
        assert np.abs(error).max() > 0.1
    assert np.abs(errors[0] - errors[1]).max() > 0.1


def of_one_worker(gradients: list[np.ndarray]) -> list[np.ndarray]:
    """Return what PowerSGD of rank 1 makes of the gradients of a single worker.

    Vogels, Karimireddy, Jaggi 2019, algorithm 1 with the error of algorithm 2.
    """
    right = torch.randn(12, 1, generator=parameter_generator(5, 0)).double().numpy()
    error, sent = np.zeros((12, 12)), []
    for gradient in gradients:
        matrix = gradient.reshape(12, 12) + error
        left = matrix @ right
        left /= np.linalg.norm(left)
        right = matrix.T @ left
        sent.append(left @ right.T)
        error = matrix - sent[-1]
    return sent


def alone(context: Any) -> Any:
    """Return what one rank learns from the mean gradients of two."""
    ranks, sent = Ranks(1), []
    for step in range(6):
        both = [drawn(rank, step) for rank in range(2)]
        sent.append(ranks.step(*((a + b) / 2 for a, b in zip(*both, strict=True)))[0])
    return torch.stack(sent).view(6, 12, 12).tolist()


def test_ranks_send_what_one_worker_would_of_their_mean(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "2").mkdir()
    (single,) = run_in_contexts(1, alone, directory=tmp_path / "1")
    (first, _), (second, _) = run_in_contexts(2, many_steps, directory=tmp_path / "2")
    means = [
        sum(drawn(rank, step)[0].double().numpy() for rank in range(2)) / 2
        for step in range(6)
    ]
    expected = np.stack(of_one_worker(means))
    assert np.array(single) == pytest.approx(expected, abs=1e-4)
    assert np.array(first[3]).reshape(6, 12, 12) == pytest.approx(expected, abs=1e-4)
    assert first[3] == second[3]


def messages(context: Any, rank: int) -> Any:
    """Return how many numbers the messages of a step hold, of the first and a later."""
    ranks, sizes = Ranks(rank, bucket_cap_mb=1e-6), []
    all_reduce = dist.all_reduce

    def counting(tensor: Any, **how: Any) -> Any:
        sizes.append(tensor.numel())
        return all_reduce(tensor, **how)

    dist.all_reduce = counting
    for step in range(3):
        sizes.clear()
        ranks.step(*drawn(context.rank, step))
    dist.all_reduce = all_reduce
    return sum(sizes)


@pytest.mark.parametrize(
    ("rank", "expected"),
    [
        (1, 12 + 12 + 3 + 4),
        (2, 2 * (12 + 12) + 3 + 4),
        (6, 144 + 3 + 4),  # a product would have as many numbers as the matrix
    ],
)
def test_as_many_numbers_are_sent_as_two_thin_matrices_have(
    tmp_path: Path, rank: int, expected: int
) -> None:
    assert run_in_contexts(2, messages, rank, directory=tmp_path) == [expected] * 2


def observed(context: Any) -> Any:
    """Exchange the second of two accumulated passes; return what observers saw."""
    seen: list[Any] = []
    observers = Observers(
        on_own_gradients=lambda piece: seen.extend(piece.tolist()),
        on_own_gradients_ready=lambda: None,
    )
    ranks = Ranks(1, observers=observers)
    own = drawn(context.rank, 0)
    with ranks.spread.no_sync():
        ranks.spread.model(*own).backward()
    ranks.spread.model(*own).backward()
    total = [2 * gradient for gradient in own]
    expected = sorted(torch.cat([g.flatten() for g in total]).tolist())
    apart = (ranks.model.large.grad - total[0]).abs().max().item()
    return sorted(seen) == expected, apart > 0.1


def test_observers_see_accumulated_gradients_before_they_are_compressed(
    tmp_path: Path,
) -> None:
    assert run_in_contexts(2, observed, directory=tmp_path) == [(True, True)] * 2


def of_a_static_graph(context: Any) -> Any:
    """Return what a static graph sends in three steps, and what any other sends."""
    found = []
    for is_static in (True, False):
        ranks = Ranks(1, static_graph=is_static, bucket_cap_mb=1e-6)
        steps = [ranks.step(*drawn(context.rank, n)) for n in range(3)]
        found.append([[g.tolist() for g in gradients] for gradients in steps])
    return found


def test_a_static_graph_sends_the_same(tmp_path: Path) -> None:
    for static, other in run_in_contexts(2, of_a_static_graph, directory=tmp_path):
        assert static == other


def of_16_bits(context: Any) -> Any:
    """Return how far sent and kept are from own gradients, rounded to 16 bits."""
    ranks = Ranks(1, torch.bfloat16)
    own = [g.bfloat16() for g in drawn(context.rank, 0)]
    sent = ranks.step(*own)
    both = sent[0].float() + ranks.error
    return (
        str(sent[0].dtype),
        str(ranks.error.dtype),
        (both - own[0]).abs().max().item(),
    )


def test_what_rounding_loses_is_kept_as_well(tmp_path: Path) -> None:
    for sent, error, apart in run_in_contexts(2, of_16_bits, directory=tmp_path):
        assert (sent, error) == ("torch.bfloat16", "torch.float32")
        assert apart < 1e-6


def overflowing(context: Any) -> Any:
    """Let one rank overflow in a step; return whether all see it and none keeps it."""
    ranks = Ranks(1)
    ranks.step(*drawn(context.rank, 0))
    rights, errors = ranks.power_sgd.state()
    large, vector, small = drawn(context.rank, 1)
    if context.rank == 1:
        large[3, 2, 1] = float("inf")
    sent = ranks.step(large, vector, small)[0]
    new_rights, new_errors = ranks.power_sgd.state()
    return (
        bool(torch.isfinite(sent).all()),
        torch.equal(rights[0], new_rights[0]),
        torch.equal(errors[0], new_errors[0]),
    )


def test_an_overflow_shows_on_all_ranks_and_is_not_kept(tmp_path: Path) -> None:
    results = run_in_contexts(2, overflowing, directory=tmp_path)
    assert results == [(False, True, True)] * 2


def going_on(context: Any) -> Any:
    """Go on in a new model, whose buckets are other ones in its first pass."""
    make = partial(Ranks, 2, bucket_cap_mb=1e-4)
    whole, half = make(), make()
    expected = [whole.step(*drawn(context.rank, n)) for n in range(4)]
    for n in range(2):
        half.step(*drawn(context.rank, n))
    other = make()
    other.power_sgd.restore(*half.power_sgd.state())
    found = [other.step(*drawn(context.rank, n)) for n in range(2, 4)]
    return [
        torch.equal(a, b)
        for new, old in zip(found, expected[2:], strict=True)
        for a, b in zip(new, old, strict=True)
    ]


def test_what_is_kept_goes_over_into_another_model(tmp_path: Path) -> None:
    assert run_in_contexts(2, going_on, directory=tmp_path) == [[True] * 6] * 2


def beginning_anew(context: Any) -> Any:
    """Return whether a step is the first one again once all is forgotten."""
    ranks = Ranks(1)
    found = [ranks.step(*drawn(context.rank, 0))[0] for _ in range(2)]
    ranks.power_sgd.forget()
    found.append(ranks.step(*drawn(context.rank, 0))[0])
    return torch.equal(found[0], found[1]), torch.equal(found[0], found[2])


def test_a_pass_before_the_first_step_can_be_forgotten(tmp_path: Path) -> None:
    results = run_in_contexts(2, beginning_anew, directory=tmp_path)
    assert results == [(False, True)] * 2


def test_other_units_of_the_gradients_are_those_of_the_errors(tmp_path: Path) -> None:
    (first, _) = run_in_contexts(2, rescaled, directory=tmp_path)
    assert first == [True, True]


def rescaled(context: Any) -> Any:
    """Return whether a loss scale that doubles changes nothing but the unit."""
    plain, scaled = Ranks(1), Ranks(1)
    for ranks in (plain, scaled):
        ranks.step(*drawn(context.rank, 0))
    scaled.power_sgd.rescale(2.0)
    expected = plain.step(*drawn(context.rank, 1))[0]
    found = scaled.step(*(2 * g for g in drawn(context.rank, 1)))[0]
    return [
        torch.equal(found, 2 * expected),
        torch.equal(scaled.error, 2 * plain.error),
    ]


def power_sgd_trial(rank: int, **changes: Any) -> Trial:
    fields: dict[str, Any] = {
        "kind": TrialKind.CONVERGENCE,
        "learning_rate": RATE,
        "local_batch_size": 32,
        "options": {"gradient_compression": "powersgd", "powersgd_rank": rank},
        "measurement": Measurement(max_samples=2000, evaluate_every_samples=500),
    }
    return on(throughput_trial("own_workloads:HashedDigits"), 2, **(fields | changes))


@pytest.mark.slow
@pytest.mark.repetition
def test_convergence_does_not_depend_on_the_number_of_ranks(tmp_path: Path) -> None:
    two = power_sgd_trial(1)
    one = on(two, 1, gradient_accumulation_steps=2)
    losses = {}
    for name, trial in {"1": one, "2": two, "plain": replace(two, options={})}.items():
        run_trial(tmp_path / name, trial, code_directory=HERE)
        rows = stream(tmp_path / name, "evaluation")
        losses[name] = [row["val_loss"] for row in rows]
    assert losses["1"] == pytest.approx(losses["2"], rel=1e-3)
    assert losses["1"] != pytest.approx(losses["plain"], rel=1e-2)


@pytest.mark.repetition
@pytest.mark.slow
def test_digits_converge_as_with_whole_gradients(tmp_path: Path) -> None:
    # Vogels, Karimireddy, Jaggi 2019, table 3: products of rank 2 reach the
    # accuracy of whole gradients in as many epochs, at the same learning rate.
    target = Target(metric="val_acc", mode=MetricMode.MAX, value=0.95)
    measurement = Measurement(
        max_samples=256 * 64, evaluate_every_samples=640, target=target
    )
    compressed = power_sgd_trial(2, measurement=measurement)
    measured = run_trial(tmp_path / "powersgd", compressed, code_directory=HERE)
    plain = run_trial(
        tmp_path / "plain", replace(compressed, options={}), code_directory=HERE
    )
    assert measured["samples_to_target"] < 2 * plain["samples_to_target"]
    assert "gradient_noise_scale" not in measured
    assert plain["gradient_noise_scale"] > 0
    assert 0 < measured["exposed_sync_s"] < measured["step_time_s"]
