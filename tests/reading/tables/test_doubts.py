"""What is more likely read in a wrong way is refused, or said."""

import random
from collections.abc import Callable
from typing import Any

import pytest
from messy_tables import BATCHES, COUNTS, Row, csv, plain_columns, step_time_s, truth
from sentences import refused

from scalelab.errors import SpecError
from scalelab.session.run import Run

Import = Callable[..., Run]


def crossed(
    name: str, factors: dict[Any, float], *, scatter: float = 0.01, repeats: int = 1
) -> str:
    """Return a table in which a further column multiplies the times."""
    rng = random.Random(1)
    rows = [
        {**row, "value": value, "step": row["step"] * factor * rng.gauss(1, scatter)}
        for row in truth()
        for value, factor in factors.items()
        for _ in range(repeats)
    ]
    return csv(plain_columns(**{name: lambda row: row["value"]}), rows=rows)


STAGES = {1: 1.0, 2: 1.15, 3: 1.4}


@pytest.mark.parametrize("repeats", [1, 3])
def test_values_that_make_a_difference_are_not_pooled(
    run_of: Import, repeats: int
) -> None:
    text = crossed("state level", STAGES, repeats=repeats)
    message = (
        r"resnet50\.csv: the column 'state level' is not read, and rows that are "
        r"otherwise alike differ with it: a step takes \d+ ms with '1' \(line \d+\)"
        r" and \d+ ms with '3' \(line \d+\)\. .* Say --axis 'state level' if it is a "
        r"setting, or --ignore 'state level' if the rows are repeats\."
    )
    with pytest.raises(SpecError, match=message):
        run_of(text)
    run = run_of(text, axis=["state level"])
    assert len(run.fit_rows.curves) == 3
    assert run.import_notes[0] == (
        f"They are 3 curves: state level=1 ({12 * repeats} rows); state level=2 "
        f"({12 * repeats} rows); state level=3 ({12 * repeats} rows)."
    )


def test_they_are_pooled_where_the_user_says_so(run_of: Import) -> None:
    run = run_of(crossed("state level", STAGES), ignore=["state level"])
    assert len(run.fit_rows.curves) == 1


def test_a_well_known_setting_is_an_axis(run_of: Import) -> None:
    run = run_of(crossed("ZeRO stage", STAGES))
    assert set(run.observations["options.ZeRO stage"]) == {1, 2, 3}
    assert len(run.fit_rows.curves) == 3


@pytest.mark.parametrize(
    "name",
    ["zero1", "ZeRO-1 range", "recomputation", "act_ckpt", "sample packing", "tp_size"],
)
def test_a_setting_that_matters_only_at_scale_is_an_axis(
    run_of: Import, name: str
) -> None:
    run = run_of(only_at_scale(name))
    assert run.import_notes[0].startswith("They are 2 curves")


def only_at_scale(name: str, factor: float = 1.6) -> str:
    """Return a table in which a column matters on the most devices alone."""
    rows = [
        {**row, "value": value, "step": row["step"] * (factor if is_slow else 1.002)}
        for row in truth()
        for value in (1, 2)
        for is_slow in [value == 2 and row["count"] == COUNTS[-1]]
    ]
    return csv(
        plain_columns(dp=lambda row: row["count"], **{name: lambda row: row["value"]}),
        rows=rows,
    )


def test_an_unknown_column_that_matters_only_at_scale_is_asked_about(
    run_of: Import,
) -> None:
    message = r"'stage' is not read, .* with '1' \(line \d+\) and .* Say --axis stage"
    with pytest.raises(SpecError, match=message):
        run_of(only_at_scale("stage"))


@pytest.mark.parametrize("first", ["tp1 zero1=", "tp=1, zero1 = ", "pack=F;zero:"])
def test_a_column_that_lists_settings_is_asked_about(
    run_of: Import, first: str
) -> None:
    header, *lines = only_at_scale("setting").splitlines()
    text = "\n".join([header, *(f'{row[:-1]}"{first}{row[-1]}"' for row in lines)])
    with refused("table_refused", "--axis setting"):
        run_of(text)
    run = run_of(text, axis=["setting"])
    assert run.import_notes[0] == (
        f"They are 2 curves: setting={first}1 (12 rows); setting={first}2 (12 rows)."
    )


@pytest.mark.parametrize("cell", ["tp1 or so", "cpu=8", "dp8 tp1", "V100", "zero 1"])
def test_other_words_are_left_as_they_are(run_of: Import, cell: str) -> None:
    run = run_of(csv(plain_columns(setting=lambda row: cell)))
    assert "Not read: 'setting'. --axis NAME says that one is a setting." in (
        run.import_notes
    )


def test_one_configuration_at_several_settings_is_enough(run_of: Import) -> None:
    lines = [f"8,1,64,{value},{0.2 * factor}" for value, factor in STAGES.items()]
    text = "\n".join(["gpus,nodes,local_batch,stage,step_time_s", *lines])
    with pytest.raises(SpecError, match="--axis stage"):
        run_of(text)


@pytest.mark.parametrize("repeats", [1, 3])
@pytest.mark.parametrize("scatter", [0.01, 0.05, 0.2])
def test_values_that_make_none_are_repeats(
    run_of: Import, scatter: float, repeats: int
) -> None:
    same = dict.fromkeys("abc", 1.0)
    run = run_of(crossed("tag", same, scatter=scatter, repeats=repeats))
    assert len(run.fit_rows.curves) == 1
    assert "Not read: 'tag'. --axis NAME says that one is a setting." in (
        run.import_notes
    )


@pytest.mark.parametrize(
    "name", ["speedup", "Efficiency (%)", "memory_gb", "n_rep", "final loss", "run_id"]
)
def test_what_was_measured_beside_the_times_is_never_a_setting(
    run_of: Import, name: str
) -> None:
    run = run_of(crossed(name, STAGES))
    assert len(run.fit_rows.curves) == 1


@pytest.mark.parametrize(
    "name", ["data_source", "loss_scaling", "run", "pool memory", "final loss"]
)
def test_values_that_recur_and_halve_the_times_are_asked_about(
    run_of: Import, name: str
) -> None:
    text = crossed(name, {"on": 1.0, "off": 2.0})
    with pytest.raises(SpecError, match=f"the column '{name}' is not read, and rows"):
        run_of(text)


@pytest.mark.parametrize("name", ["pin_memory", "lora_rank"])
def test_a_setting_named_like_a_result_is_an_axis(run_of: Import, name: str) -> None:
    run = run_of(crossed(name, {8: 1.0, 16: 2.0}))
    assert set(run.observations[f"options.{name}"]) == {8, 16}
    assert len(run.fit_rows.curves) == 2


@pytest.mark.parametrize("name", ["speedup", "final loss", "memory_gb", "rank"])
def test_a_result_follows_the_times_without_a_doubt(run_of: Import, name: str) -> None:
    rows = [
        {**row, "step": row["step"] * factor, "value": (1 + at / 1000) / factor}
        for at, row in enumerate(truth())
        for factor in (1.0, 2.0)
    ]
    run = run_of(csv(plain_columns(**{name: lambda row: row["value"]}), rows=rows))
    assert len(run.fit_rows.curves) == 1


@pytest.mark.parametrize(
    ("name", "scale"),
    [("images_per_sec_per_gpu", 64.0), ("tokens_per_s", 5e5), ("it/s", 1.0)],
)
def test_a_speed_that_is_not_needed_is_no_setting(
    run_of: Import, name: str, scale: float
) -> None:
    rows = [
        {**row, "step": row["step"] * factor, "value": round(scale / factor)}
        for row in truth()
        for factor in (1.0, 1.02, 1.3)
    ]
    columns = plain_columns(**{name: lambda row: row["value"]})
    run = run_of(csv(columns, rows=rows))
    assert f"Not read: '{name}'." in " ".join(run.import_notes)
    assert len(run.observations) == len(rows)


def test_a_column_that_another_displaces_is_no_setting(run_of: Import) -> None:
    rows = [
        {**row, "step": row["step"] * factor, "value": row["step"] * factor * 1.5}
        for row in truth()
        for factor in (1.0, 1.3, 1.3)
    ]
    columns = plain_columns(t_median=lambda row: row["step"])
    columns["step_time_s"] = lambda row: round(row["value"], 1)
    run = run_of(csv(columns, rows=rows), column={"step_time_s": "t_median"})
    assert "Not read: 'step_time_s'." in " ".join(run.import_notes)


def test_a_label_of_each_row_is_no_setting(run_of: Import) -> None:
    rows = [
        {**row, "step": row["step"] * factor, "value": f"{at}/{factor}/{row['count']}"}
        for at, row in enumerate(truth())
        for factor in (1.0, 1.2)
    ]
    run = run_of(csv(plain_columns(label=lambda row: row["value"]), rows=rows))
    assert len(run.fit_rows.curves) == 1


def with_throughput(of: Callable[[Row], float], **others: Any) -> str:
    columns = plain_columns(throughput=of, **others)
    del columns["step_time_s"]
    return csv(columns)


@pytest.mark.parametrize("batches", ["weak", "strong"])
def test_a_throughput_that_no_device_raises_is_refused(
    run_of: Import, batches: str
) -> None:
    rows = [
        {"count": n, "nodes": -(-n // 8), "local": 64 if batches == "weak" else 64 // n}
        for n in (1, 2, 4, 8, 16)
    ]
    columns = plain_columns(
        throughput=lambda row: (
            row["local"] / step_time_s(row["count"], row["local"])
            if batches == "weak"
            else 300 - row["count"]
        )
    )
    del columns["step_time_s"]
    text = csv(columns, rows=rows)
    with pytest.raises(SpecError, match=r"does not rise with .* Say --per-device if"):
        run_of(text)
    run = run_of(text, per_device=True)
    totals = run.observations["throughput_samples_per_s"]
    assert totals.iloc[-1] > 10 * totals.iloc[0]


def test_a_throughput_of_one_device_may_scatter(run_of: Import) -> None:
    rates = {1: 320, 2: 300, 4: 318, 8: 296}
    rows = [{"count": n, "nodes": 1, "local": 64} for n in rates]
    columns = plain_columns(throughput=lambda row: rates[row["count"]])
    del columns["step_time_s"]
    message = r"320 samples/s on 1 and 296 on 8\. .* Say --per-device if"
    with pytest.raises(SpecError, match=message):
        run_of(csv(columns, rows=rows))


def test_a_throughput_that_rises_little_is_read_as_it_is(run_of: Import) -> None:
    run = run_of(with_throughput(lambda row: row["rate"] / row["count"] ** 0.7))
    assert run.import_doubts == ()


def test_a_flat_throughput_may_be_true(run_of: Import) -> None:
    text = with_throughput(lambda row: 300.0)
    run = run_of(text, accept_doubts=True)
    assert run.observations["throughput_samples_per_s"].eq(300).all()
    (doubt,) = run.import_doubts
    assert "300 samples/s on 1 and 300 on 32" in doubt


def test_tokens_beside_sequences_are_refused(run_of: Import) -> None:
    text = with_throughput(lambda row: row["rate"] * 1024, seq_len=lambda row: 1024)
    with pytest.raises(SpecError, match=r"Say --tokens-per-sample 1024 if it counts"):
        run_of(text)
    run = run_of(text, tokens_per_sample=1024)
    assert run.observations["step_time_s"].tolist() == pytest.approx(
        [row["step"] for row in truth()]
    )


@pytest.mark.parametrize("length", [512, 1024])
def test_tokens_per_sample_are_those_of_the_column(run_of: Import, length: int) -> None:
    columns = plain_columns(
        **{"tokens/s": lambda row: row["rate"] * 1024}, seq_len=lambda row: length
    )
    del columns["step_time_s"]
    if length == 1024:
        run = run_of(csv(columns), tokens_per_sample=1024)
        assert run.observations["sequence_length"].eq(1024).all()
        return
    message = r"line 2: --tokens-per-sample 1024 contradicts sequence_length=512: both"
    with pytest.raises(SpecError, match=message):
        run_of(csv(columns), tokens_per_sample=1024)


def test_tokens_per_sample_are_those_of_the_whole_table(run_of: Import) -> None:
    text = with_throughput(lambda row: row["rate"] * 1024)
    given = {"sequence_length": "512"}
    with refused("tokens_contradict", "1024", "sequence_length=512"):
        run_of(text, tokens_per_sample=1024, constant=given)


IN_TOKENS = """\
gpus,nodes,{batch},seq_len,step_time_s
1,1,65536,{length},2.0
2,1,131072,{length},2.1
"""


@pytest.mark.parametrize("name", ["batch_size_tokens", "Tokens per step"])
def test_a_batch_of_tokens_is_one_of_samples(run_of: Import, name: str) -> None:
    rows = run_of(IN_TOKENS.format(batch=name, length=2048)).observations
    assert rows["global_batch_size"].tolist() == [32, 64]
    assert rows["local_batch_size"].tolist() == [32, 32]


def test_a_batch_of_samples_comes_before_one_of_tokens(run_of: Import) -> None:
    text = IN_TOKENS.format(batch="batch_size_tokens,global_batch_size", length=2048)
    text = text.replace("65536,", "65536,16,").replace("131072,", "131072,32,")
    assert run_of(text).observations["global_batch_size"].tolist() == [16, 32]


@pytest.mark.parametrize(
    ("length", "message"),
    [
        ("", r"line 2: The batch counts 65,536 tokens, but nothing says how many"),
        ("2000", r"line 2: A batch of 65,536 tokens is no whole number of samples"),
    ],
)
def test_a_batch_of_tokens_that_makes_no_samples_is_refused(
    run_of: Import, length: str, message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        run_of(IN_TOKENS.format(batch="batch_size_tokens", length=length))


def test_a_word_on_the_throughput_needs_a_throughput(run_of: Import) -> None:
    message = r"--per-device and --tokens-per-sample is said of a throughput, but none"
    with pytest.raises(SpecError, match=message):
        run_of(csv(plain_columns()), per_device=True, tokens_per_sample=512)


@pytest.mark.parametrize("tokens", [0, -1, True])
def test_tokens_are_counted_from_one(run_of: Import, tokens: int) -> None:
    with pytest.raises(
        SpecError, match=r"tokens-per-sample=.* must be (at least 1|a whole number)"
    ):
        run_of(csv(plain_columns()), tokens_per_sample=tokens)


@pytest.mark.parametrize("count", COUNTS)
def test_milliseconds_among_seconds_are_refused(run_of: Import, count: int) -> None:
    def mixed(row: Row) -> float:
        return float(row["step"] * (1000 if row["count"] == count else 1))

    with pytest.raises(
        SpecError,
        match=r"step_time_s=[\d.]+ in line \d+ is [\d,]+ times the .* milliseconds may",
    ):
        run_of(csv(plain_columns(step_time_s=mixed)))


def on_devices(*rows: tuple[int, int, int, float]) -> str:
    """Return a table of devices, nodes, batches per device, and times."""
    names = ("count", "nodes", "local", "step")
    named = [dict(zip(names, row, strict=True)) for row in rows]
    return csv(plain_columns(), rows=named)


def test_slow_links_take_their_time(run_of: Import) -> None:
    text = on_devices(
        *((1, 1, 32, 0.01), (8, 1, 32, 0.012), (64, 8, 32, 1.09)),
        *((1, 1, 64, 0.02), (64, 8, 64, 1.1)),
    )
    run = run_of(text)
    assert run.import_doubts == ()
    assert len(run.observations) == 5


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        (
            [(1, 1, 32, 0.01), (16, 2, 32, 12)],
            r"step_time_s=12 in line 3 is 1,200 times the 0\.01 of line 2, of the same "
            r"curve: 32 samples each on 16 devices of 2 nodes, against 32 samples each "
            r"on 1 device of 1 node\.",
        ),
        ([(1, 1, 32, 10), (16, 2, 32, 0.012)], "is 833 times .* on 1 device of 1"),
        ([(1, 1, 32, 0.01), (8, 1, 32, 1.2)], "is 120 times .* on 8 devices of 1"),
        ([(1, 1, 64, 20), (8, 1, 8, 0.01)], "is 2,000 times .* on 1 device of 1"),
        ([(8, 1, 8, 0.01), (8, 1, 8, 1.0)], "is 100 times .* 8 devices of 1 node"),
    ],
)
def test_no_link_and_no_batch_explains_a_unit(
    run_of: Import, rows: list[tuple[int, int, int, float]], told: str
) -> None:
    with pytest.raises(SpecError, match=told):
        run_of(on_devices(*rows))


def test_large_batches_take_their_time(run_of: Import) -> None:
    rows = [
        {"count": n, "nodes": 1, "local": local, "step": 0.001 * local}
        for n in (1, 2, 4)
        for local in (1, 32, 1024)
    ]
    assert run_of(csv(plain_columns(), rows=rows)).import_doubts == ()


def test_times_of_an_epoch_are_not_those_of_a_step(run_of: Import) -> None:
    columns = plain_columns(
        **{"epoch_time (min)": lambda row: 3000 / row["count"] ** 0.9 / row["local"]}
    )
    del columns["step_time_s"]
    mapped = {"step_time_s": "epoch_time (min)"}
    message = (
        r"the times in the column 'epoch_time \(min\)' fall with the number of devices "
        r"at local_batch_size=32: a step takes 93\.8 min on 1 and 4\.1 min on 32\. "
        r".* samples per epoch\) .* --column global_batch_size=NAME if the batch is"
    )
    with pytest.raises(SpecError, match=message):
        run_of(csv(columns), column=mapped)
    (doubt,) = run_of(csv(columns), column=mapped, accept_doubts=True).import_doubts
    assert "A step of the same work on each device cannot." in doubt


@pytest.mark.parametrize(
    ("columns", "times"),
    [
        ({"tp": lambda row: row["count"]}, (4.0, 2.0, 1.0)),
        ({"dp": lambda row: 1}, (4.0, 2.0, 1.0)),
        ({}, (1.4, 1.2, 1.0)),
    ],
)
def test_times_may_fall_where_the_work_of_a_device_does(
    run_of: Import, columns: dict[str, Any], times: tuple[float, ...]
) -> None:
    rows = [
        {"count": 2**at, "nodes": 1, "local": 64, "step": time}
        for at, time in enumerate(times)
    ]
    text = csv(plain_columns(**columns), rows=rows)
    assert "fall with" not in " ".join(run_of(text).import_doubts)


def test_more_devices_than_a_node_can_hold_are_refused(run_of: Import) -> None:
    text = csv(plain_columns(gpus=lambda row: 3 * row["count"], nodes=lambda row: 1))
    message = (
        r"world_size=96 on 1 node in line 12 is 96 devices on one node; few nodes have "
        r"more than 72 GPUs\. .*--constant gpus_per_node=8, and --ignore .* cores, say"
    )
    with pytest.raises(SpecError, match=message):
        run_of(text)
    assert run_of(text, constant={"device_type": "cpu"}).import_doubts == ()


def test_many_devices_are_said_where_one_node_is_all_there_is(run_of: Import) -> None:
    (doubt,) = run_of(csv(plain_columns(nodes=lambda row: 1))).import_doubts
    assert doubt.startswith(
        "world_size=32 on 1 node in line 12 is 32 devices on one node; few nodes have "
        "more than 16 GPUs."
    )


def test_a_node_has_as_many_devices_as_is_said(run_of: Import) -> None:
    text = csv(plain_columns(nodes=lambda row: 1))
    assert run_of(text, constant={"gpus_per_node": "32"}).import_doubts == ()


@pytest.mark.parametrize("on_node", [32, 72])
def test_nodes_of_many_devices_exist(run_of: Import, on_node: int) -> None:
    columns = plain_columns(
        gpus=lambda row: on_node * row["nodes"], local_batch=lambda row: row["local"]
    )
    rows = [row for row in truth() if row["count"] >= 8]
    assert run_of(csv(columns, rows=rows)).import_doubts == ()


def test_devices_of_one_node_are_not_those_of_all(run_of: Import) -> None:
    rows = [
        {"count": 8, "nodes": nodes, "local": 32, "step": 0.1 + nodes / 100}
        for nodes in (1, 2, 4)
    ]
    text = csv(plain_columns(), rows=rows)
    message = r"world_size=8 \(column 'gpus'\) in all rows, on 1 and 4 nodes: .* Say --"
    with pytest.raises(SpecError, match=message):
        run_of(text)
    run = run_of(text, column={"gpus_per_node": "gpus"})
    assert run.observations["world_size"].tolist() == [8, 16, 32]


@pytest.mark.parametrize(
    "name", ["Epoch time (s)", "Total time (min)", "Training time (min)"]
)
def test_longer_times_are_not_taken_for_a_step(run_of: Import, name: str) -> None:
    columns = plain_columns(**{name: lambda row: 100})
    del columns["step_time_s"]
    with pytest.raises(SpecError) as caught:
        run_of(csv(columns))
    assert (
        f"{name!r} seems to be the time of an epoch or a training; needed is that of "
        "a step (time / number of steps), or samples per second. If it is of a "
        f"training to a target, --column time_to_target_s={name!r} says so."
    ) in str(caught.value)
    assert f"{name!r} looks like" not in str(caught.value)


def test_the_size_of_a_node_stands_in_for_the_nodes(run_of: Import) -> None:
    text = csv(plain_columns(nodes=lambda row: 1))
    run = run_of(text, ignore=["nodes"], constant={"gpus_per_node": "8"})
    assert run.observations["num_nodes"].max() == 4


@pytest.mark.parametrize("device", ["GB200 NVL72", "TPU v5p"])
def test_some_machines_have_such_nodes(run_of: Import, device: str) -> None:
    columns = plain_columns(nodes=lambda row: 1, device_name=lambda row: device)
    assert run_of(csv(columns)).import_doubts == ()


def test_curves_of_a_single_row_are_said(run_of: Import) -> None:
    columns = plain_columns(feed=lambda row: f"{row['count']}-{row['local']}")
    run = run_of(csv(columns))
    assert run.import_notes[0] == "They are 12 curves, by feed (12), of 1 each."
    (doubt,) = run.import_doubts
    assert doubt == (
        "all of 12 curves have a single row, such as feed=1-32 (line 2): one row tells "
        "nothing of scaling. Curves differ in feed (12); --ignore NAME passes over a "
        "column that is no setting."
    )


def test_one_curve_of_a_single_row_is_said(run_of: Import) -> None:
    single = truth()[0]
    columns = plain_columns(feed=lambda row: "ram" if row == single else "disk")
    (doubt,) = run_of(csv(columns)).import_doubts
    assert doubt.startswith("1 of 2 curves has a single row, such as feed=ram (line 2)")


def test_a_column_that_is_not_there_is_refused(run_of: Import) -> None:
    text = csv(plain_columns(stage=lambda row: 1))
    for option in ("axis", "ignore"):
        with refused("column_missing", "'stag'", "'stage'"):
            run_of(text, **{option: ["stag"]})


WIDE = csv(
    {
        "gpus": lambda row: row["count"],
        "nodes": lambda row: row["nodes"],
        "local_batch": lambda row: 32,
        "resnet50": lambda row: round(row["rate"], 3),
        "vgg16": lambda row: round(row["rate"] / 3, 3),
        "bert": lambda row: round(row["rate"] / 2, 3) if row["count"] > 1 else "OOM",
    },
    rows=[row for row in truth() if row["local"] == BATCHES[0]],
)


def test_a_column_for_each_workload_is_melted(run_of: Import) -> None:
    message = r"names of 'resnet50', 'vgg16', \.\.\. are values .* --melt workload=thr"
    with pytest.raises(SpecError, match=message):
        run_of(WIDE)
    run = run_of(WIDE, melt={"workload": "throughput"})
    assert run.import_notes[0] == (
        "They are 3 curves: workload=resnet50 (6 rows); workload=vgg16 (6 rows); "
        "workload=bert (5 rows)."
    )
    oom = run.observations[run.observations["outcome"] == "out_of_memory"]
    assert oom["workload"].tolist() == ["bert"]
    assert oom["world_size"].tolist() == [1]


@pytest.mark.parametrize(
    "others",
    [
        {"Created": "2024-03-04T10:11:00", "Runtime": "681", "memory": "12.5"},
        {"Schrittzeit": "184.3", "Durchsatz": "347.2"},
    ],
)
def test_columns_of_unlike_things_are_not_to_be_melted(
    run_of: Import, others: dict[str, str]
) -> None:
    text = (
        f"gpus,nodes,local_batch,{','.join(others)}\n1,1,64,{','.join(others.values())}"
    )
    with pytest.raises(SpecError) as caught:
        run_of(text)
    assert "--melt" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("perf/step_time", "looks like step_time_s."),
        ("t_step_ms", "looks like step_time_s."),
    ],
)
def test_a_name_like_that_of_a_step_time_is_said(
    run_of: Import, name: str, told: str
) -> None:
    with pytest.raises(SpecError) as caught:
        run_of(f"gpus,nodes,local_batch,std_step_ms,{name}\n1,1,64,2,184.3\n")
    assert f"{name!r} {told}" in str(caught.value)
    assert "'std_step_ms' looks like" not in str(caught.value)


@pytest.mark.parametrize(
    "name", ["mean_step_ms", "avg_step_time_ms", "step_time_p50_ms", "p50 step (ms)"]
)
def test_the_middle_of_the_steps_is_read_and_their_tail_is_not(
    run_of: Import, name: str
) -> None:
    text = f"gpus,nodes,local_batch,{name},p99_step_ms\n2,1,64,184.3,250.1\n"
    assert run_of(text).observations["step_time_s"].item() == pytest.approx(0.1843)


def test_percentiles_are_no_numbers_of_devices(run_of: Import) -> None:
    text = "gpus,nodes,local_batch,p95_dauer,p99_dauer\n2,1,64,190,250\n"
    with pytest.raises(SpecError) as caught:
        run_of(text)
    assert "--melt" not in str(caught.value)


@pytest.mark.parametrize(
    ("melt", "message"),
    [
        (
            {"workload": "speed"},
            r"--melt workload=speed: the first is a column of ours",
        ),
        ({"model": "throughput"}, r"--melt model=throughput: the first is a column"),
        ({"num_nodes": "throughput"}, r"no further columns whose names hold num_nodes"),
        (
            {"workload": "throughput", "precision": "x"},
            "melt names 2 columns, workload,",
        ),
    ],
)
def test_a_melting_that_cannot_be_is_refused(
    run_of: Import, melt: dict[str, str], message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        run_of(WIDE, melt=melt)


@pytest.mark.parametrize("name", ["workload", "throughput"])
def test_a_melting_does_not_replace_a_column(run_of: Import, name: str) -> None:
    text = WIDE.replace("local_batch", f"local_batch,{name}").replace(",32,", ",32,7,")
    message = rf"resnet50\.csv has a column '{name}', which --melt is to fill from"
    with pytest.raises(SpecError, match=message):
        run_of(text, melt={"workload": "throughput"})


def test_a_batch_of_unclear_meaning_is_asked_about(run_of: Import) -> None:
    columns = plain_columns(**{"Batch size": lambda row: row["local"]})
    del columns["local_batch"]
    message = (
        r"'Batch size' may be the batch of one device \(--column local_batch_size="
        r"'Batch size'\) or of all \(--column global_batch_size='Batch size'\)\."
    )
    with pytest.raises(SpecError, match=message):
        run_of(csv(columns))


def test_a_curve_that_may_be_in_milliseconds_is_said(run_of: Import) -> None:
    rows = "model,gpus,nodes,global_batch_size,step_time_s\n"
    rows += "".join(
        f"{model},{gpus},1,64,{unit * 0.5 / gpus:g}\n"
        for model, unit in (("resnet", 1), ("bert", 1000))
        for gpus in (1, 2, 4)
    )
    (doubt,) = run_of(rows).import_doubts
    assert doubt.startswith("a sample takes 1,000 times as long at workload=bert")


def test_a_table_of_failures_alone_is_said(run_of: Import) -> None:
    run = run_of("gpus,nodes,global_batch_size,step_time_s\n1,1,64,OOM\n")
    assert run.import_doubts[0].startswith("none of its rows tells a time")


def test_a_negative_number_of_devices_is_no_name(run_of: Import) -> None:
    with pytest.raises(SpecError, match=r"column 'gpus' .*'-1' must be at least 1"):
        run_of("gpus,nodes,global_batch_size,step_time_s\n-1,1,64,0.1\n2,1,64,0.1\n")


WIDE_TOKENS = (
    'model,sequence length,batch_size_per_gpu,"1 GPU (tokens/sec)","2 GPUs '
    '(tokens/sec)","4 GPUs (tokens/sec)",2 GPUs scaling,4 GPUs scaling\n'
    "llama,512,2,668.48,1288.36,2261.4,0.96,0.85\n"
)


@pytest.mark.parametrize("cells", ["throughput_samples_per_s", "tokens/s"])
def test_a_unit_in_the_melted_names_goes_before_what_was_asked(
    run_of: Import, cells: str
) -> None:
    run = run_of(
        WIDE_TOKENS, melt={"world_size": cells}, constant={"gpus_per_node": "8"}
    )
    rows = run.observations.set_index("world_size")
    assert sorted(rows.index) == [1, 2, 4]
    assert rows["step_time_s"][1] == pytest.approx(2 * 512 / 668.48)
    assert rows["step_time_s"][4] == pytest.approx(4 * 2 * 512 / 2261.4)


def test_the_hint_names_the_unit_that_it_saw(run_of: Import) -> None:
    with pytest.raises(SpecError, match=r"--melt world_size=tokens_sec\."):
        run_of(WIDE_TOKENS)


def test_milliseconds_in_the_melted_names_are_read(run_of: Import) -> None:
    text = "model,batch_per_gpu,1 GPU (ms),2 GPUs (ms)\nvit,8,250,260\n"
    melt = {"world_size": "step_time_s"}
    run = run_of(text, melt=melt, constant={"gpus_per_node": "2"})
    assert [*run.observations["step_time_s"]] == pytest.approx([0.25, 0.26])
