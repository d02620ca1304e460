"""The language model: its counts, its data, and what training it comes to."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from gang import attempt, on, run_attempt, run_trial, stream, throughput_trial

from scalelab.errors import SpecError
from scalelab.experiment.trial import LearningRate, Measurement, Trial, TrialKind
from scalelab.inputs.outcome import Outcome
from scalelab.records.observations import row
from scalelab.training.order import SampleOrder
from scalelab.training.seeds import MODEL_STREAM, seed_everything
from scalelab.training.workloads.transformer_lm import Decoder, TransformerLm
from scalelab.training.workloads.transformer_shape import TransformerShape

SMALL = {"layers": 2, "width": 32, "heads": 2, "sequence_length": 16}
BATCH, STEPS, RATE = 16, 40, 3e-3
WORDS = "the cat sat on a mat and saw that it was flat ".split()


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """Twelve words in random order, 20,000 bytes."""
    chosen = np.random.default_rng(0).choice(WORDS, 8000)
    path = tmp_path / "words.txt"
    path.write_text(" ".join(chosen)[:20_000])
    return path


def lm_trial(**changes: Any) -> Trial:
    fields = {
        "kind": TrialKind.CONVERGENCE,
        "local_batch_size": BATCH,
        "learning_rate": LearningRate(
            base=RATE, at_batch=None, rule="none", warmup_samples=0, value=RATE
        ),
        "measurement": Measurement(
            max_samples=BATCH * STEPS, evaluate_every_samples=BATCH
        ),
    }
    return throughput_trial("transformer_lm", **(fields | changes))


@pytest.mark.parametrize(
    ("sizes", "counted"),
    [
        # 256 bytes and 16 places; per block 4 matrices of attention, 8 of perceptron
        ((1, 8, 2, 16), (256 + 16) * 8 + 12 * 64 + 13 * 8 + 2 * 8),
        ((2, 64, 2, 64), 120_576),
        ((12, 768, 12, 1024), 86_039_040),
        ((16, 800, 16, 1024), 124_072_000),
    ],
)
def test_parameters_are_as_many_as_counted_by_hand(
    sizes: tuple[int, int, int, int], counted: int
) -> None:
    layers, width, heads, length = sizes
    shape = TransformerShape(
        layers=layers, width=width, heads=heads, sequence_length=length
    )
    with torch.device("meta"):
        model = Decoder(shape)
    assert sum(p.numel() for p in model.parameters()) == counted
    assert shape.num_parameters == counted


def test_operations_are_those_that_torch_counts_in_matrices() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    shape = TransformerShape(layers=2, width=64, heads=2, sequence_length=32)
    model = Decoder(shape)
    with FlopCounterMode(display=False) as counter:
        model(torch.zeros(1, 32, dtype=torch.int64)).sum().backward()
    counts = counter.get_flop_counts()["Global"]
    counted = sum(n for name, n in counts.items() if str(name).endswith("mm"))
    in_matrices = 6 * (2 * 12 * 64**2 + 256 * 64) * 32
    in_vectors = 6 * (2 * 13 + 2) * 64 * 32  # of norms and biases
    in_scores = 12 * 2 * 64 * 32 * 32
    assert shape.flops_per_sample == in_matrices + in_vectors + in_scores
    assert counted == in_matrices


def test_initialisation_is_that_of_gpt2() -> None:
    torch.manual_seed(0)
    shape = TransformerShape(layers=8, width=64, heads=2, sequence_length=64)
    model = Decoder(shape)
    deviations = {name: p.std().item() for name, p in model.named_parameters()}
    assert deviations["tokens.weight"] == pytest.approx(0.02, rel=0.05)
    assert deviations["blocks.3.widen.weight"] == pytest.approx(0.02, rel=0.05)
    assert deviations["blocks.3.narrow.weight"] == pytest.approx(0.005, rel=0.05)
    assert deviations["blocks.3.from_heads.weight"] == pytest.approx(0.005, rel=0.05)
    scores = model(torch.randint(256, (4, 64)))
    losses = F.cross_entropy(scores.flatten(0, 1), torch.randint(256, (256,)))
    assert losses.item() == pytest.approx(math.log(256), rel=0.01)


def test_no_byte_sees_those_after_it() -> None:
    torch.manual_seed(0)
    model = Decoder(TransformerShape(**SMALL))
    tokens = torch.randint(256, (1, 16))
    changed = tokens.clone()
    changed[0, 10:] = (changed[0, 10:] + 1) % 256
    before, after = model(tokens), model(changed)
    assert torch.equal(before[:, :10], after[:, :10])
    assert not torch.allclose(before[:, 10], after[:, 10])


def test_checkpointing_changes_no_gradient() -> None:
    torch.manual_seed(0)
    tokens = torch.randint(256, (2, 16))
    kept = Decoder(TransformerShape(**SMALL))
    again = Decoder(TransformerShape(**SMALL), activation_checkpointing=True)
    again.load_state_dict(kept.state_dict())
    for model in (kept, again):
        model(tokens).square().sum().backward()
    for one, other in zip(kept.parameters(), again.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)


def test_each_byte_of_the_text_is_predicted_once(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_bytes(bytes(range(100, 200)))
    (tmp_path / "a.txt").write_bytes(bytes(range(100)))
    (tmp_path / ".hidden").write_bytes(b"no")
    workload = TransformerLm(**SMALL, data=str(tmp_path), held_out_fraction=0.25)
    (trained,) = workload.training_data().tensors
    (held_out,) = workload.held_out_data().tensors
    assert trained.shape == (9, 17)  # of 150 bytes, the last 5 fill no sequence
    assert trained[:, 1:].flatten().tolist() == list(range(1, 145))
    assert trained[:, 0].tolist() == list(range(0, 144, 16))
    assert held_out[:, 1:].flatten().tolist() == list(range(151, 199))


def plain_loop(text: Path) -> tuple[list[float], float]:
    """Train the same model as a short script would; return losses and val_loss."""
    workload = TransformerLm(**SMALL, data=str(text))
    seed_everything(0, MODEL_STREAM)
    model = Decoder(TransformerShape(**SMALL))
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decayed}, {"params": others, "weight_decay": 0.0}],
        lr=RATE,
        betas=(0.9, 0.95),
        weight_decay=0.1,
    )

    def loss_of(sequences: torch.Tensor) -> torch.Tensor:
        tokens = sequences.long()
        return F.cross_entropy(model(tokens[:, :-1]).mT, tokens[:, 1:])

    (data,), losses = workload.training_data().tensors, []
    order = SampleOrder(num_samples=len(data), global_batch_size=BATCH, seed=0)
    for step in range(STEPS):
        loss = loss_of(data[torch.from_numpy(order.batch(step))])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, loss_of(workload.held_out_data().tensors[0]).item()


@pytest.mark.repetition
@pytest.mark.slow
def test_training_comes_to_what_a_plain_loop_comes_to(
    text: Path, tmp_path: Path
) -> None:
    losses, val_loss = plain_loop(text)
    assert val_loss < 3.2 < losses[0]  # of ln 256 = 5.5 nats before the first step
    trial = lm_trial()
    measured = run_trial(tmp_path / "one", trial, data=str(text), **SMALL)
    assert [r["loss"] for r in stream(tmp_path / "one", "step")] == pytest.approx(
        losses, abs=1e-5
    )
    assert measured["final_metric"] == pytest.approx(val_loss, abs=1e-5)
    assert measured["optimizer"] == "AdamW(betas=(0.9, 0.95), weight_decay=0.1)"
    assert measured["dataset"].startswith("text ")
    # Two ranks add up the same gradients in another order.
    trial = on(trial, 2, local_batch_size=BATCH // 2)
    measured = run_trial(tmp_path / "two", trial, data=str(text), **SMALL)
    assert measured["final_metric"] == pytest.approx(val_loss, abs=1e-3)


@pytest.mark.slow
def test_a_resumed_trial_is_the_same_bit_by_bit(text: Path, tmp_path: Path) -> None:
    trial = lm_trial(local_batch_size=8, gradient_accumulation_steps=2)
    parameters: dict[str, Any] = {**SMALL, "data": str(text), "schedule": "cosine"}
    whole = run_attempt(attempt(tmp_path / "whole" / "001", trial, **parameters))
    halves = tmp_path / "halves"
    stopped = run_attempt(attempt(halves / "001", trial, **parameters), stop_at_step=9)
    assert stopped.outcome is Outcome.PREEMPTED
    resumed = run_attempt(attempt(halves / "002", trial, **parameters))
    rows = stream(halves / "002", "step")
    assert 1 < rows[0]["step"] < STEPS
    expected = stream(tmp_path / "whole" / "001", "step")[rows[0]["step"] - 1 :]
    assert [r["loss"] for r in rows] == [r["loss"] for r in expected]
    assert resumed.measurements["final_metric"] == whole.measurements["final_metric"]


@pytest.mark.slow
def test_the_row_has_its_tokens_and_operations_however_the_trial_ends(
    text: Path, tmp_path: Path
) -> None:
    measurement = Measurement(warmup_steps=1, steps=4)
    trial = throughput_trial(
        "transformer_lm",
        local_batch_size=2,
        precision="bf16",
        options={"sequence_length": 24, "activation_checkpointing": True},
        measurement=measurement,
    )
    spec = attempt(tmp_path / "trial", trial, data=str(text), layers=1, width=16)
    result = run_attempt(spec)
    observed = row(spec, result)
    shape = TransformerShape(layers=1, width=16, heads=4, sequence_length=24)
    assert observed["sequence_length"] == observed["options.sequence_length"] == 24
    assert observed["flops_per_sample"] == shape.flops_per_sample
    assert observed["num_parameters"] == shape.num_parameters
    failed = replace(result, outcome=Outcome.OUT_OF_MEMORY, measurements={})
    assert row(spec, failed)["sequence_length"] == 24


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"width": 30}, r"^width=30 cannot be divided among heads=4: each head tak"),
        ({"layers": 0}, r"^layers=0 must be a whole number, at least 1\.$"),
        ({"sequence_length": 1.5}, r"^sequence_length=1\.5 must be a whole number"),
        ({"heads": True}, r"^heads=True must be a whole number, at least 1\.$"),
        ({"held_out_fraction": 1}, r"^held_out_fraction=1 must be between 0 and 1\."),
        ({"data": []}, r"^data=\[\] must be the path of a file or a folder, or a list"),
        ({"data": 3}, r"^data=3 must be the path of a file or a folder, or a list of"),
        ({"schedule": "step"}, r"^schedule='step' must be one of \('constant', 'cos"),
        (
            {"activation_checkpointing": 1},
            r"^activation_checkpointing=1 must be true or false\.$",
        ),
    ],
)
def test_wrong_parameters_are_refused(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        TransformerLm(**parameters)


def test_without_data_it_reads_the_standard_library() -> None:
    workload = TransformerLm()
    assert workload.dataset_name == "python-sources"
    (trained,) = workload.training_data().tensors
    (held_out,) = workload.held_out_data().tensors
    assert trained.numel() > 1_000_000
    assert len(held_out) == pytest.approx(len(trained) / 9, rel=0.01)
