"""Each kind of note with sample values; golden files have the sentences."""

from typing import Any

PLACE = {
    "world_size": 8,
    "allocation": "2x4",
    "local_batch_size": 16,
    "gradient_accumulation_steps": 1,
}
RUNNER_UP: dict[str, Any] = {
    "world_size": 32,
    "than": 16,
    "speedup": 1.6,
    "cost_ratio": 1.25,
    "unit": "GPU-h",
    "reason": "pays_too_little",
    "needed": 1.7,
    "probability": None,
    "limits": [],
    "global_batch_size": 8192,
    "largest": 4096,
    "why_largest": "the largest that was measured",
    "may_ask": True,
}
STEP_TIME: dict[str, Any] = {
    "basis": "measured",
    "num_runs": 3,
    "apart": 0.004,
    "is_contradicted": False,
    "is_emulated": False,
}
ASK = {"name": "recommend", "subjects": ["runs/vit"], "options": {"max_time": "2h"}}
SWEEP = {
    "name": "sweep",
    "subjects": ["vit.yaml"],
    "options": {"trial": "gpus=8,local_batch_size=16"},
}
DONE = {"num_judged": 0, "num_accepted": 0, "conditions": "val_acc >= 0.9"}
RATES: dict[str, Any] = {
    "num_trials": 6,
    "world_size": 1,
    "global_batch_size": 256,
    "reported_step_time_s": 0.1,
    "step_time_s": 0.2,
    "is_left_out": False,
}

TERMS: dict[str, Any] = {
    "checkpoint_s": 20.0,
    "restart_s": 60.0,
    "wait_s": 300.0,
    "sources": {"checkpoint": "as given", "restart": "assumed", "wait": "as given"},
    "every_s": 7200.0,
}
SEEN: dict[str, Any] = TERMS | {
    "every_s": None,
    "num_seen": 1,
    "node_hours": 40.0,
    "at_most_per_hour": 0.12,
    "at_most_sure": 0.95,
}
PARTS = (
    "a checkpoint takes 20 s (as given), a restart takes 60 s (assumed), a new node "
    "takes 5 min (as given)."
)
ENDS = (
    "With the first node that is lost, ranks that wait for one another all go back to "
    "the last checkpoint, and the other nodes are paid meanwhile; a worker that waits "
    "for no other is lost alone. Nodes on demand are taken to stay."
)
TAKEN: dict[str, Any] = {
    "time_s": {"value": 18000.0, "lo": 15840.0, "hi": 22680.0},
    "cost": {"value": 14.0, "lo": 11.0, "hi": 19.0},
}
BESIDE_SPOT: dict[str, Any] = {
    "name": "p2",
    "device_word": "GPU",
    "world_size": 16,
    "currency": "usd",
    "on_demand": {
        "time_s": {"value": 14760.0, "lo": 14400.0, "hi": 15120.0},
        "cost": {"value": 39.0, "lo": 38.0, "hi": 40.0},
    },
    "spot": TAKEN,
    "checkpoint_every_s": 1200.0,
    "is_best_interval": True,
    "is_gang": True,
}
CAMPAIGN: dict[str, Any] = {
    "time_s": {"value": 21600.0, "lo": 18000.0, "hi": 25200.0},
    "gpu_hours": {"value": 190.0, "lo": 180.0, "hi": 200.0},
    "probability": 0.97,
}
FOUR: dict[str, Any] = {
    "world_size": 4,
    "num_runs": 24,
    "side_by_side": 8,
    "basis": "measured",
}
WAIT: dict[str, Any] = {
    "date": "2026-11-28",
    "world_size": 8,
    "largest": 4,
    "has_deadline": True,
    "num_started": 34,
    "num_waiting": 3,
    "median_s": 7200.0,
    "most_s": 32400.0,
    "seen_s": (60.0, 10800.0),
    "is_of_any_limit": False,
}
PAYS: dict[str, Any] = {
    "name": "p2",
    "device_word": "GPU",
    "currency": "usd",
    "sizes": [8, 16, 32],
    "chances": [1.0, 0.95, 0.898],
    "up_to": 16,
    "never_ends": [64],
}

BESIDE = {
    "of_doublings": False,
    "settings": {},
    "world_size": 32,
    "allocation": "4x8",
    "local_batch_size": 16,
    "gradient_accumulation_steps": 1,
    "basis": "measured",
    "takes": ["5 h", "160 GPU-h"],
    "probability": 0.88,
    "speedup": 3.8,
    "cost_ratio": 1.04,
}

SURE = {"num_same": 399, "num_draws": 400, "instead": {"world_size": 2}}
SURE |= {"num_others": 1}
SPLIT = SURE | {"num_same": 206, "num_otherwise": 194, "num_others": 2}
CONTAINED: dict[str, Any] = {
    "contents": "steps",
    "beside_s": {"start-up": 41.0, "evaluation": 380.0},
    "not_in": ["checkpoints"],
}
NOTES: list[tuple[str, dict[str, Any]]] = [
    (
        "diverged",
        {"num_diverged": 3, "num_runs": 9, "settings": {"learning_rate": [0.7, 1.4]}},
    ),
    (
        "failures",
        {
            "num_trials": 12,
            "num_measured": 2,
            "num_unfitting": 1,
            "num_failed": 9,
            "num_reasons": 2,
            "num_alike": 8,
            "reason": "no such file",
        },
    ),
    ("incomplete_sweep", {"num_trials": 1}),
    ("accepted", DONE),
    ("accepted", DONE | {"num_judged": 3, "num_accepted": 1}),
    ("on_the_edge", BESIDE),
    ("on_the_edge", BESIDE | {"of_doublings": True, "probability": 1.0}),
    ("faster", BESIDE),
    ("faster", BESIDE | {"speedup": 0.5, "cost_ratio": 0.9}),
    ("on_the_edge", BESIDE | {"settings": {"tp": 4, "precision": "bf16"}}),
    ("faster", BESIDE | {"speedup": 0.97, "cost_ratio": 0.76}),
    ("to_submit_now", BESIDE),
    ("programs", {"world_size": 8, "times_s": {"torch": 7200.0, "jax": 3600.0}}),
    (
        "not_sure_enough",
        PLACE
        | {
            "global_batch_size": 1024,
            "time_s": 7200.0,
            "limits": ["< 2 h", "< 9 usd"],
            "probability": 0.6,
        },
    ),
    ("asked_job", {"job": ["90 epochs", "a global batch of 64"], "has_own": True}),
    ("asked_job", {"job": ["1,000 steps"], "has_own": False}),
    ("believed", {"beliefs": ["100Gbit/s between nodes", "the law usl of step times"]}),
    ("learned_from", {"num_curves": 2, "runs": ["a", "b"]}),
    (
        "off_the_product",
        {"num_trials": 12, "mean_error": 0.3, "worst_error": 0.5, "correction": 0.2},
    ),
    ("whole_runs", {}),
    ("pruned", {"num_attempts": 3}),
    (
        "contradicting",
        PLACE
        | {"num_configurations": 3, "factor": 30.0, "num_runs": 2}
        | {"least_s": 0.1, "most_s": 3.0, "settings": {}},
    ),
    (
        "contradicting",
        PLACE
        | {"num_configurations": 1, "factor": 30.0, "num_runs": 2}
        | {"least_s": 0.1, "most_s": 3.0, "settings": {"program": "a.py"}},
    ),
    ("doubted", PLACE | {"factor": 0.5, "num_runs": 3, "neighbours": [], "curve": ""}),
    (
        "doubted",
        PLACE
        | {"factor": 9.8, "num_runs": 1, "neighbours": [4, 16]}
        | {"curve": "parallelism=fsdp"},
    ),
    ("doubted", PLACE | {"factor": 9.8, "num_runs": 1, "neighbours": [], "curve": ""}),
    ("batches_differ", {"least": 64, "most": 4096, "amount": "10 epochs"}),
    ("next_step", {"step": "ask_larger_batch", "world_size": 512, "command": ASK}),
    ("nothing_measured", {"limits": ["< 2.5 h"], "world_size": 4}),
    ("nothing_chosen", {}),
    ("contradicted_not_chosen", {"world_sizes": [2, 4]}),
    ("doubted_not_chosen", {"world_sizes": [128]}),
    ("beyond_the_site", {"allocation": "4x2", "site": "1x2"}),
    ("more_doubted", {"count": 1}),
    ("no_repeats", {}),
    ("few_readings", {"num_runs": 2}),
    ("not_witnessed", {"least": 2, "most": 4}),
    ("same_data", {"least": 2, "most": 4, "count": 3}),
    ("one_process", {"least": 1, "most": 1, "count": 3}),
    ("samples_not_witnessed", {"least": 1, "most": 4, "count": 1}),
    ("ranks_alone", {"least": 2, "most": 4, "count": 3}),
    ("samples_unexplained", {"least": 1, "most": 4, "count": 1}),
    (
        "samples_differ",
        {"why": "batch_sizes", "count": 2, "asked": 64, "samples_per_step": 30.857},
    ),
    ("whole_data", {"in_epochs": True, "least": 2, "most": 4}),
    ("whole_data", {"in_epochs": False, "least": 2, "most": 4}),
    ("another_epoch", {"samples_per_epoch": 6400, "samples_of_pass": 1600.0}),
    (
        "another_epoch",
        {"samples_per_epoch": 640, "samples_of_pass": 160.0, "program": "a.py"},
    ),
    ("epoch_of_loader", {"samples": 1437}),
    ("ended_early", {"count": 2, "num_steps": 22, "asked_steps": 50}),
    (
        "busy_machine",
        {"count": 2, "num_trials": 26, "load_average": 5.26, "cores_at_hand": 2},
    ),
    ("later_differs", {"why": "unexplained", "count": 26, "factor": 4.0}),
    ("later_differs", {"why": "first_epoch", "count": 26, "factor": 0.125}),
    ("later_differs", {"why": "pauses", "count": 26, "factor": 1.0}),
    ("long_trial", {"num_trials": 26, "each_s": 0.8, "num_long": 1, "long_s": 40.0}),
    ("gpu_throttled", {"least": 1, "most": 4, "count": 2}),
    (
        "not_settled",
        {"bound": "at_least", "count": 2, "world_size": 4, "step_time_s": 0.069},
    ),
    ("equal_losses", {"batches": ["16", "64"]}),
    ("own_rate_differs", RATES),
    ("own_rate_differs", RATES | {"is_left_out": True}),
    (
        "target_not_reached",
        {
            "target": "val_acc >= 0.9",
            "num_runs": 15,
            "within_samples": 90_000,
            "amount": "90 epochs",
        },
    ),
    (
        "missed",
        {
            "target": "val_acc >= 0.9",
            "num_missed": 5,
            "num_runs": 36,
            "spent": "2 GPU-h",
            "at": [
                {
                    "global_batch_size": 1024,
                    "settings": {"lr_rule": "linear"},
                    "num_missed": 2,
                    "num_runs": 3,
                    "within_samples": 58_368,
                }
            ],
        },
    ),
    ("why_not", RUNNER_UP),
    ("why_not", RUNNER_UP | {"speedup": 1.695}),
    (
        "why_not",
        RUNNER_UP
        | {"reason": "unlikely", "world_size": 1, "speedup": 0.2, "cost_ratio": 0.9}
        | {"probability": 0.0, "limits": ["< 4 h", "< 20 usd"], "needed": None},
    ),
    (
        "why_not",
        RUNNER_UP | {"reason": "batch_too_large", "needed": None, "cost_ratio": 1.001},
    ),
    ("why_not", RUNNER_UP | {"reason": "not_measured_here", "needed": None}),
    (
        "why_not",
        RUNNER_UP | {"reason": "takes_more", "limits": ["< 4 h"], "needed": None},
    ),
    ("why_not", RUNNER_UP | {"reason": "slower", "speedup": 0.98, "needed": None}),
    ("only_count", {"world_size": 8}),
    ("step_time", STEP_TIME),
    ("step_time", STEP_TIME | {"num_runs": 1, "apart": None}),
    ("step_time", STEP_TIME | {"is_contradicted": True}),
    ("step_time", STEP_TIME | {"basis": "interpolated", "num_runs": 0, "apart": None}),
    ("choice_in_draws", {"num_same": 388, "num_draws": 400}),
    ("choice_in_draws", {"num_same": 267, "num_draws": 400}),
    (
        "target_reached",
        {"target": "val_acc >= 0.9", "global_batch_size": 64}
        | {"num_runs": 3, "num_reached": 2},
    ),
    ("next_step", {"step": "ask_what_can_be_met", "command": ASK}),
    (
        "next_step",
        {"step": "measure", "why": "its runs contradict", "takes": "2 GPU-h"}
        | {"command": SWEEP},
    ),
    ("next_step", {"step": "nothing", "command": None}),
    ("next_step", {"step": "nothing", "command": None, "drawn": SURE}),
    ("next_step", {"step": "nothing", "command": None, "drawn": SPLIT}),
    (
        "next_step",
        {"step": "measure", "why": "it was measured once", "takes": "2 GPU-h"}
        | {"command": SWEEP, "drawn": SPLIT | {"num_others": 1}},
    ),
    ("next_step", {"step": "mend", "command": None}),
    ("next_step", {"step": "elsewhere", "command": None, "world_size": 16}),
    ("pooled", {"settings": ["feed", "framework"]}),
    (
        "uneven",
        {
            "world_size": 16,
            "allocation": "2x8",
            "local_batch_size": 32,
            "gradient_accumulation_steps": 1,
            "samples_per_s": 3.75,
            "other_world_size": 32,
            "other_samples_per_s": 7.6,
            "is_of_one": True,
            "curve": "parallelism=fsdp",
        },
    ),
    ("link_unknown", {"world_size": 16, "lo_s": 150.0, "hi_s": 7920.0}),
    ("critical_batch", {"value": 147.0, "lo": 81.7, "hi": 1274.2, "rule": "linear"}),
    (
        "rates_found",
        {
            "found": [
                dict(global_batch_size=32, rate=0.1, lo=0.1, hi=0.1, num_rates=8),
                dict(global_batch_size=512, rate=0.5656, lo=0.4, hi=0.8, num_rates=5),
            ],
            "at_batch": 512,
            "rules": [
                {"rule": "linear", "rate": 1.6, "verdict": "open"},
                {"rule": "sqrt", "rate": 0.4, "verdict": "holds"},
            ],
        },
    ),
    ("target_not_measured", {"target": "val_acc >= 0.9", "amount": "90 epochs"}),
    ("accuracy_not_measured", {"global_batch_size": 512, "amount": "90 epochs"}),
    ("accuracy_alike", {"setting": "precision", "value": "bf16"}),
    (
        "accuracy_gap",
        {
            "metric": "val_acc",
            "mean": -0.018,
            "lo": -0.02,
            "hi": -0.016,
            "count": 2,
            "world_size": 4,
            "global_batch_size": 1024,
        },
    ),
    (
        "ruled_out",
        {"reasons": {"rule=adag": "val_acc -0.018", "rule=elastic": "val_acc -0.02"}},
    ),
    ("flat", {"law": "xgboost", "world_size": 64, "least": 16, "most": 128}),
    ("extrapolated", PLACE),
    ("extrapolated", {**PLACE, "gradient_accumulation_steps": 4}),
    (
        "not_tried",
        {"local_batch_size": 32, "peak_bytes": 13 * 2**30, "capacity_bytes": 2**34},
    ),
    ("cut_to_an_epoch", {"largest": 100}),
    ("against_cheapest", {"world_size": 4, "more": 0.26}),
    ("efficiency", {"world_size": 4, "scaling": "weak", "other_settings": {}}),
    ("above_ideal_on_fewer", {"world_size": 4}),
    ("above_ideal_on_more", {"world_size": 1, "why": "by less than runs scatter"}),
    (
        "batch_too_large",
        {"world_size": 16, "largest": 256, "why": "one epoch", "may_ask": False},
    ),
    ("unmeasured_not_chosen", {"world_sizes": [16, 32], "is_proposed": True}),
    (
        "considered",
        {
            "least": 1,
            "most": 8,
            "batches": "a global batch of 32",
            "may_ask_devices": True,
            "may_ask_batches": True,
        },
    ),
    ("replicas_not_divided", {"world_sizes": [7, 9], "replica_sizes": [2.0, 4.0]}),
    ("replicas_not_known", {"shares": [[1, 2], [1, 4]]}),
    ("batch_not_shared", {"world_sizes": [12, 24], "batches": "a global batch of 256"}),
    (
        "not_identifiable",
        {
            "parameters": ["inter_node_latency", "inter_node_bandwidth"],
            "why": "one node was measured",
            "remedy": "Measure two.",
            "may_learn": True,
        },
    ),
    (
        "device_not_compared",
        {"name": "a100", "why": "None of the 3 rows has a usable step time."},
    ),
    (
        "against_devices",
        {
            "name": "c4",
            "chances": {"faster": {"p2": 0.71, "r4": 1.0}, "cheaper": {"p2": 0.5}},
        },
    ),
    (
        "faster_device",
        {
            "name": "p2",
            "world_size": 4,
            "basis": "measured",
            "speedup": 3.0,
            "cost_ratio": 1.04,
        },
    ),
    (
        "nearest",
        {
            "confidence": 0.9,
            "limits": [
                {
                    "resource": "time",
                    "limit": 2400.0,
                    "asked": "40 min",
                    "amount": 5880.0,
                    "ratio": 2.5,
                    "needed": "98 min",
                    "within": [],
                    "most_likely": 1.0,
                    "world_size": 16,
                    "allocation": "4x4",
                }
            ],
        },
    ),
    (
        "nearest",
        {
            "confidence": 0.9,
            "limits": [
                {
                    "resource": "time",
                    "limit": 2400.0,
                    "asked": "40 min",
                    "amount": None,
                    "needed": "",
                    "within": ["20 usd"],
                    "most_likely": 0.2,
                    "world_size": 1,
                    "allocation": "1x1",
                },
                {
                    "resource": "money",
                    "limit": 20.0,
                    "asked": "20 usd",
                    "amount": 21.0,
                    "ratio": 1.05,
                    "needed": "21 usd",
                    "within": ["40 min"],
                    "most_likely": 1.0,
                    "world_size": 1,
                    "allocation": "1x1",
                    "device": "c4",
                },
            ],
        },
    ),
    (
        "accuracy_elsewhere",
        {
            "names": ["c4", "r4"],
            "metric": "val_acc",
            "world_size": 10,
            "mean": -0.034,
            "lo": -0.04,
            "hi": -0.03,
            "count": 3,
            "lost": 0.034,
            "global_batch_size": 320,
        },
    ),
    ("efficiency_within", {}),
    (
        "ruled_out_elsewhere",
        {"names": ["c4"], "reasons": {"local_sgd": "val_acc -0.049"}},
    ),
    ("worth_granting", {"least": 4, "most": 16, "best": 8}),
    (
        "electricity",
        {
            "source": "modelled",
            "said_by": "as given",
            "pue": 1.5,
            "carbon_g_per_kwh": 380.0,
            "devices": [
                {"name": "c4", "device_word": "CPU slot", "watts": [150.0, 150.0]},
                {"name": "p2", "device_word": "GPU", "watts": [300.0, 300.0]},
            ],
        },
    ),
    (
        "electricity",
        {
            "source": "measured",
            "said_by": "by the rows",
            "pue": 1.0,
            "carbon_g_per_kwh": None,
            "devices": [{"name": "", "device_word": "GPU", "watts": [412.0, 431.0]}],
        },
    ),
    (
        "chained_jobs",
        {
            "kinds": [
                {
                    "name": "p2",
                    "device_word": "GPU",
                    "limit_s": 86400.0,
                    "start_up_s": 95.0,
                    "checkpoint_s": 60.0,
                    "sources": {"restart": "measured", "checkpoint": "assumed"},
                    "confidence": 0.9,
                    "smallest": 16,
                }
            ]
        },
    ),
    (
        "answers_held",
        {
            "num_jobs": 12,
            "num_held": 7,
            "num_configurations": 3,
            "mass": 0.8,
            "widened_by": 0.1823,
        },
    ),
    (
        "answers_held",
        {
            "num_jobs": 1,
            "num_held": 1,
            "num_configurations": 1,
            "mass": 0.8,
            "widened_by": 0.0,
        },
    ),
    (
        "campaign",
        {
            "num_runs": 26,
            "pool": 32,
            "limits": ["< 8 h"],
            "holds": True,
            "plan": {
                **CAMPAIGN,
                "cost_usd": {"value": 380.0, "lo": 360.0, "hi": 400.0},
                "shares": [
                    FOUR,
                    {
                        "world_size": 16,
                        "num_runs": 2,
                        "side_by_side": 2,
                        "basis": "extrapolated",
                    },
                ],
            },
            "one_after_another": {**CAMPAIGN, "shares": [{**FOUR, "world_size": 32}]},
            "on_the_fewest": {**CAMPAIGN, "shares": [{**FOUR, "world_size": 1}]},
            "lower_bound_s": 18000.0,
            "hour_word": "GPU-h",
            "currency": "usd",
        },
    ),
    ("queue_wait", WAIT),
    (
        "queue_wait",
        WAIT
        | {
            "date": "",
            "num_started": 4,
            "median_s": None,
            "most_s": None,
            "is_of_any_limit": True,
            "has_deadline": False,
        },
    ),
    (
        "queue_wait",
        WAIT
        | {"num_started": 1, "median_s": None, "most_s": None, "seen_s": (1.5, 1.5)},
    ),
    (
        "queue_wait",
        WAIT | {"num_started": 0, "median_s": None, "most_s": None, "seen_s": None},
    ),
    ("by_time_alone", {"devices": ["c4", "r4"]}),
    ("old_price", {"name": "p2", "days": 115, "date": "2026-08-01"}),
    ("spot_beside", BESIDE_SPOT),
    (
        "spot_beside",
        BESIDE_SPOT
        | {"is_gang": False, "name": "", "spot": {"time_s": TAKEN["time_s"]}},
    ),
    ("spot_pays", {"confidence": 0.9, "kinds": [PAYS]}),
    (
        "spot_pays",
        {
            "confidence": 0.9,
            "kinds": [
                {**PAYS, "up_to": None, "chances": [0.004, 0.0, 0.0]},
                {**PAYS, "name": "c4", "up_to": 32, "never_ends": []},
            ],
        },
    ),
    ("spot_terms", {"kinds": [{**TERMS, "names": ["c4", "p2"]}]}),
    ("spot_terms", {"kinds": [{**SEEN, "names": ["p2"]}, {**TERMS, "names": ["c4"]}]}),
    (
        "spot_hangs_on",
        {
            "least": 0.05,
            "currency": "usd",
            "doubled": {
                "interruptions": {},
                "checkpoint": {"time_s": TAKEN["time_s"]},
                "wait": TAKEN,
            },
        },
    ),
    ("spot_hangs_on", {"least": 0.05, "currency": "usd", "doubled": {}}),
    (
        "spot_history",
        {
            "name": "p2",
            "file": "h.csv",
            "days": 83.3,
            "currency": "usd",
            "mean": 0.33,
            "lo": 0.15,
            "hi": 0.54,
            "most": 1.4,
            "variation": 0.61,
            "has_price": True,
            "share_above": 0.02,
        },
    ),
    ("spot_never_ends", {**TERMS, "name": "p2"}),
    ("spot_not_compared", {"names": ["c4", "p2"], "is_price": False}),
    ("spot_not_compared", {"names": ["p2"], "is_price": True}),
    ("costs_contain", {"is_interruptible": True}),
    ("costs_contain", {"is_interruptible": False}),
    ("history_not_read", {"run": "old"}),
    ("import_doubted", {"doubt": "2 rows are alike."}),
    ("times_contain", CONTAINED),
    ("times_contain", CONTAINED | {"of_first_epoch": True}),
    ("times_contain", CONTAINED | {"contents": "all", "not_in": []}),
]
