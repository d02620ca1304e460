"""Every kind of note has a sentence that says its values."""

import re
from pathlib import Path
from typing import Any, get_args

import pytest

import scalelab
from scalelab.inputs.problems import for_the_command_line
from scalelab.recommend.answer.facts import Contents, Fact
from scalelab.recommend.answer.note_words import SENTENCES, in_words, judged_times
from scalelab.recommend.prediction.consistency import NOTED

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
SAID: list[tuple[str, dict[str, Any], str]] = [
    (
        "diverged",
        {"num_diverged": 3, "num_runs": 9, "settings": {"learning_rate": [0.7, 1.4]}},
        "3 of 9 runs diverged, all at learning rate 0.7 to 1.4.",
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
        "From 2 of 12 trials; 1 did not fit into memory; 9 failed, 8 of them: no such "
        "file.",
    ),
    (
        "incomplete_sweep",
        {"num_trials": 1},
        "The sweep is not complete: 1 trial to come.",
    ),
    (
        "accepted",
        DONE,
        "No trial has been evaluated yet that could be accepted: val_acc >= 0.9.",
    ),
    (
        "accepted",
        DONE | {"num_judged": 3, "num_accepted": 1},
        "1 of 3 trials was accepted: val_acc >= 0.9.",
    ),
    (
        "on_the_edge",
        BESIDE,
        "On the edge: 32 GPUs (4x8), local batch 16: 5 h, 160 GPU-h, would be chosen "
        "at a confidence of 88%.",
    ),
    (
        "on_the_edge",
        BESIDE | {"of_doublings": True, "probability": 1.0},
        "On the edge: 32 GPUs (4x8), local batch 16: 5 h, 160 GPU-h, would be chosen "
        "at a confidence of 99% that every doubling pays.",
    ),
    ("faster", BESIDE, "32 GPUs (measured): 3.8 times faster for 4% more."),
    (
        "faster",
        BESIDE | {"speedup": 0.5, "cost_ratio": 0.9},
        "32 GPUs (measured): 2 times slower for 10% less.",
    ),
    (
        "on_the_edge",
        BESIDE | {"settings": {"tp": 4, "precision": "bf16"}},
        "On the edge: 32 GPUs (4x8), local batch 16, tp 4, precision bf16: 5 h, "
        "160 GPU-h, would be chosen at a confidence of 88%.",
    ),
    (
        "faster",
        BESIDE | {"speedup": 0.97, "cost_ratio": 0.76},
        "32 GPUs (measured): as fast for 24% less.",
    ),
    (
        "to_submit_now",
        BESIDE,
        "To submit now: 32 GPUs (4x8), local batch 16: measured, 5 h, 160 GPU-h.",
    ),
    (
        "programs",
        {"world_size": 8, "times_s": {"torch": 7200.0, "jax": 3600.0}},
        "Programs on 8 GPUs, each with its best batch: jax 60 min, torch 2 h.",
    ),
    (
        "not_sure_enough",
        PLACE
        | {
            "global_batch_size": 1024,
            "time_s": 7200.0,
            "limits": ["< 2 h", "< 9 usd"],
            "probability": 0.6,
        },
        "Measured, but not sure enough: 8 GPUs (2x4), global batch 1,024 with local "
        "batch 16: 2 h, chance of meeting < 2 h and < 9 usd: 60%.",
    ),
    (
        "asked_job",
        {"job": ["90 epochs", "a global batch of 64"], "has_own": True},
        "Asked of another job: 90 epochs and a global batch of 64.",
    ),
    (
        "asked_job",
        {"job": ["1,000 steps"], "has_own": False},
        "Asked of a job of 1,000 steps.",
    ),
    (
        "believed",
        {"beliefs": ["100Gbit/s between nodes", "the law usl of step times"]},
        "Believed, not measured: 100Gbit/s between nodes and the law usl of step "
        "times.",
    ),
    (
        "learned_from",
        {"num_curves": 2, "runs": ["a", "b"]},
        "Step times were also learned from 2 curves of a, b: believed, not measured "
        "here.",
    ),
    (
        "off_the_product",
        {"num_trials": 12, "mean_error": 0.3, "worst_error": 0.5, "correction": 0.2},
        "12 end-to-end trials took +30% against the product of the two laws, 50% off "
        "at most; predictions are corrected by +20%.",
    ),
    (
        "whole_runs",
        {},
        "This way of training does not factorise into samples and steps: times follow "
        "whole runs.",
    ),
    (
        "pruned",
        {"num_attempts": 3},
        "Ended early by their source (pruned): 3 attempts; what they measured until "
        "then counts.",
    ),
    (
        "contradicting",
        PLACE
        | {"num_configurations": 3, "factor": 30.0, "num_runs": 2}
        | {"least_s": 0.1, "most_s": 3.0, "settings": {}},
        "Contradicting: 3 configurations scatter up to 30-fold. 2 runs on 8 GPUs "
        "(2x4), local batch 16, took 100 ms to 3 s a step. Repeat on a quiet machine.",
    ),
    (
        "contradicting",
        PLACE
        | {"num_configurations": 1, "factor": 30.0, "num_runs": 2}
        | {"least_s": 0.1, "most_s": 3.0, "settings": {"program": "a.py"}},
        "Contradicting: 1 configuration scatters up to 30-fold. 2 runs on 8 GPUs "
        "(2x4), local batch 16, program a.py, took 100 ms to 3 s a step. Repeat on a "
        "quiet machine.",
    ),
    (
        "doubted",
        PLACE | {"factor": 0.5, "num_runs": 3, "neighbours": [], "curve": ""},
        "Doubted: a run on 8 GPUs was 2 times faster than others; it was left out. "
        "Measure it again.",
    ),
    (
        "doubted",
        PLACE
        | {"factor": 9.8, "num_runs": 1, "neighbours": [4, 16]}
        | {"curve": "parallelism=fsdp"},
        "Doubted: 8 GPUs (parallelism=fsdp) were measured once, 9.8 times slower than "
        "4 and 16 suggest; that row was left out. Measure it again.",
    ),
    (
        "doubted",
        PLACE | {"factor": 9.8, "num_runs": 1, "neighbours": [], "curve": ""},
        "Doubted: 8 GPUs were measured once, 9.8 times slower than the other rows "
        "suggest; that row was left out. Measure it again.",
    ),
    (
        "batches_differ",
        {"least": 64, "most": 4096, "amount": "10 epochs"},
        "Rows differ in batch, 64 to 4,096: each is taken to need 10 epochs (batch).",
    ),
    (
        "next_step",
        {"step": "ask_larger_batch", "world_size": 512, "command": ASK},
        "Next: scalelab.load('runs/vit').recommend(max_time='2h') (lets 512 GPUs meet "
        "it with a larger batch).",
    ),
    (
        "nothing_measured",
        {"limits": ["< 2.5 h"], "world_size": 4},
        "Open: nothing measured meets < 2.5 h; 4 GPUs are a prediction.",
    ),
    (
        "nothing_chosen",
        {},
        "Nothing is chosen: another source contradicts every row.",
    ),
    (
        "contradicted_not_chosen",
        {"world_sizes": [2, 4]},
        "Not chosen: 2, 4 GPUs. Their ranks train on the same batches, the batch "
        "prints the losses of another, or later steps take another time; "
        "accept_unmeasured=True allows them.",
    ),
    (
        "doubted_not_chosen",
        {"world_sizes": [128]},
        "Not chosen: 128 GPUs. What was measured there was left out; the figures are "
        "those of the other rows.",
    ),
    (
        "beyond_the_site",
        {"allocation": "4x2", "site": "1x2"},
        "Open: 4x2 is more than the site has, 1x2.",
    ),
    ("more_doubted", {"count": 1}, "1 more run is doubted."),
    (
        "no_repeats",
        {},
        "Nothing was measured twice: intervals assume that runs differ by the usual "
        "few percent. Repeat one.",
    ),
    (
        "few_readings",
        {"num_runs": 2},
        "Scatter unknown: 2 runs without repeats, and with one to three readings of "
        "the step time in each; the usual scatter is assumed. Report steps more often, "
        "train longer, or raise measure.repeats.",
    ),
    (
        "not_witnessed",
        {"least": 2, "most": 4},
        "Not witnessed: nothing showed that the ranks of 2 to 4 GPUs work together. If "
        "each trains alone, their speedup is no scaling. Report world_size, as the "
        "framework says it.",
    ),
    (
        "same_data",
        {"least": 2, "most": 4, "count": 3},
        "Not witnessed: the ranks of 3 trials began with the same batch and hold the "
        "same parameters. Times hold; what several ranks learn is what one would.",
    ),
    (
        "one_process",
        {"least": 1, "most": 1, "count": 3},
        "One process: 3 trials ran as a single process that joins no others, so more "
        "CPU slots than were measured are not proposed.",
    ),
    (
        "samples_not_witnessed",
        {"least": 1, "most": 4, "count": 1},
        "Not witnessed: in 1 trial nothing confirmed that a step is of as many samples "
        "as were asked. A DataLoader does, or samples reported beside the steps.",
    ),
    (
        "ranks_alone",
        {"least": 2, "most": 4, "count": 3},
        "Each trains alone: in 3 trials the parameters and the gradients of the ranks "
        "differed at every step looked at. Wrap the model in DistributedDataParallel; "
        "where it averages weights now and then, write parallelism: local_sgd.",
    ),
    (
        "samples_unexplained",
        {"least": 1, "most": 4, "count": 1},
        "Not explained: in 1 trial a step drew other samples than were asked for, and "
        "nothing shows why. Pass {local_batch_size} where the program reads it.",
    ),
    (
        "samples_differ",
        {"why": "batch_sizes", "count": 2, "asked": 64, "samples_per_step": 30.857},
        "Drawn, not asked: 30.9 samples a step, where 64 were asked (batches differ in "
        "size). Rates are of those drawn.",
    ),
    (
        "whole_data",
        {"in_epochs": True, "least": 2, "most": 4},
        "Each of 4 ranks draws all samples of its data set in a pass. An epoch takes "
        "as long as on one rank: give the loader a sampler, "
        "torch.utils.data.DistributedSampler.",
    ),
    (
        "whole_data",
        {"in_epochs": False, "least": 2, "most": 4},
        "Each of 4 ranks draws all samples of its data set in a pass. Where all have "
        "the same data set, the loader lacks a sampler.",
    ),
    (
        "another_epoch",
        {"samples_per_epoch": 6400, "samples_of_pass": 1600.0},
        "The job counts 6,400 samples an epoch; a pass over the program's loaders has "
        "1,600.",
    ),
    (
        "another_epoch",
        {"samples_per_epoch": 640, "samples_of_pass": 160.0, "program": "a.py"},
        "a.py: The job counts 640 samples an epoch; a pass over the program's loaders "
        "has 160.",
    ),
    (
        "epoch_of_loader",
        {"samples": 1437},
        "An epoch has 1,437 samples: a pass over the program's data loader.",
    ),
    (
        "ended_early",
        {"count": 2, "num_steps": 22, "asked_steps": 50},
        "Ended early: 2 trials ended after 22 of 50 steps, since the program ended. A "
        "job that trains on may take another time.",
    ),
    (
        "busy_machine",
        {"count": 2, "num_trials": 26, "load_average": 5.26, "cores_at_hand": 2},
        "Other programs used this machine during 2 of 26 trials (load 5.3 on 2 "
        "cores): these times are too long.",
    ),
    (
        "later_differs",
        {"why": "unexplained", "count": 26, "factor": 4.0},
        "Later steps take another time: after the steps that other trials measure, "
        "those of a long trial took 4 times as long, and nothing shows why. Which of "
        "both a long job takes is not known.",
    ),
    (
        "later_differs",
        {"why": "first_epoch", "count": 26, "factor": 0.125},
        "Steps of the first epoch take 8 times as long as later ones, as a long trial "
        "shows: times are of later ones, and the first epoch is added once.",
    ),
    (
        "later_differs",
        {"why": "pauses", "count": 26, "factor": 1.0},
        "Steps pause at even distances, as a long trial shows: the pauses are counted "
        "as evaluation.",
    ),
    (
        "long_trial",
        {"num_trials": 26, "each_s": 0.8, "num_long": 1, "long_s": 40.0},
        "Measured: 26 trials of 800 ms of steps, 1 long trial of 40 s.",
    ),
    (
        "gpu_throttled",
        {"least": 1, "most": 4, "count": 2},
        "A GPU lowered its clocks in 2 trials, for heat or a power brake: their times "
        "are too long.",
    ),
    (
        "not_settled",
        {"bound": "at_least", "count": 2, "world_size": 4, "step_time_s": 0.069},
        "Not settled: 2 trials ended while the step time still moved: at least 69 "
        "ms a step on 4 GPUs. A trial goes on for ten times measure.steps, or 2 min. "
        "Raise measure.steps.",
    ),
    (
        "equal_losses",
        {"batches": ["16", "64"]},
        "Doubted: the trials of global batch 16 and 64 print the same losses, to all "
        "digits. The batch size is not read, each rank trains alone, or all samples "
        "are alike.",
    ),
    (
        "own_rate_differs",
        RATES,
        "The program's own rate differs in 6 trials. On 1 GPU, global batch 256, it "
        "prints 2.56e+03 samples/s (100 ms a step), ScaleLab read 1.28e+03 (200 ms). "
        "Its clock leaves something out or adds it; the answer uses wall time.",
    ),
    (
        "own_rate_differs",
        RATES | {"is_left_out": True},
        "The program's own rate differs in 6 trials. On 1 GPU, global batch 256, it "
        "prints 2.56e+03 samples/s (100 ms a step), ScaleLab read 1.28e+03 (200 ms). "
        "One of the two does not count optimiser steps: left out.",
    ),
    (
        "target_not_reached",
        {
            "target": "val_acc >= 0.9",
            "num_runs": 15,
            "within_samples": 90_000,
            "amount": "90 epochs",
        },
        "Not reached: val_acc >= 0.9, by 15 runs within 90,000 samples; the answer is "
        "for 90 epochs, which may not suffice.",
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
        "Missed: 5 of 36 runs did not reach val_acc >= 0.9 (2 GPU-h); 2 of 3 at global "
        "batch 1,024, rule linear, within 58,368 samples.",
    ),
    (
        "why_not",
        RUNNER_UP,
        "Why 16 GPUs and not 32: 32 are 1.60 times as fast for 25% more GPU-h; a "
        "doubling pays from 1.70 times on.",
    ),
    (
        "why_not",  # on the knife's edge a third decimal tells
        RUNNER_UP | {"speedup": 1.695},
        "Why 16 GPUs and not 32: 32 are 1.695 times as fast for 25% more GPU-h; a "
        "doubling pays from 1.700 times on.",
    ),
    (
        "why_not",
        RUNNER_UP
        | {"reason": "unlikely", "world_size": 1, "speedup": 0.2, "cost_ratio": 0.9}
        | {"probability": 0.0, "limits": ["< 4 h", "< 20 usd"], "needed": None},
        "Why 16 GPUs and not 1: 1 takes 5.00 times as long for 10% less GPU-h, and "
        "meets < 4 h and < 20 usd with a chance of < 1%.",
    ),
    (
        "why_not",
        RUNNER_UP | {"reason": "batch_too_large", "needed": None, "cost_ratio": 1.001},
        "Why 16 GPUs and not 32: 32 are 1.60 times as fast for as much GPU-h, but at "
        "batch 8,192, above 4,096, the largest that was measured (max_batch=8192).",
    ),
    (
        "why_not",
        RUNNER_UP | {"reason": "not_measured_here", "needed": None},
        "Why 16 GPUs and not 32: 32 are 1.60 times as fast for 25% more GPU-h, but "
        "rest on what was not measured here (accept_unmeasured=True).",
    ),
    (
        "why_not",
        RUNNER_UP | {"reason": "takes_more", "limits": ["< 4 h"], "needed": None},
        "Why 16 GPUs and not 32: 32 are 1.60 times as fast for 25% more GPU-h; 16 GPUs "
        "meet < 4 h already.",
    ),
    (
        "why_not",
        RUNNER_UP | {"reason": "slower", "speedup": 0.98, "needed": None},
        "Why 16 GPUs and not 32: 32 take as long for 25% more GPU-h.",
    ),
    ("only_count", {"world_size": 8}, "Why 8 GPUs: no other number is compared."),
    (
        "step_time",
        STEP_TIME,
        "Confirmed: step time measured, 3 runs within 0.4%.",
    ),
    (
        "step_time",
        STEP_TIME | {"num_runs": 1, "apart": None},
        "Open: step time measured once.",
    ),
    (
        "step_time",
        STEP_TIME | {"is_contradicted": True},
        "Contradicted: the step time of the choice, by other runs.",
    ),
    (
        "step_time",
        STEP_TIME | {"basis": "interpolated", "num_runs": 0, "apart": None},
        "Open: step time interpolated.",
    ),
    (
        "choice_in_draws",
        {"num_same": 388, "num_draws": 400},
        "Confirmed: the same choice in 388 of 400 draws.",
    ),
    (
        "choice_in_draws",
        {"num_same": 267, "num_draws": 400},
        "Open: the same choice in 267 of 400 draws.",
    ),
    (
        "target_reached",
        {"target": "val_acc >= 0.9", "global_batch_size": 64}
        | {"num_runs": 3, "num_reached": 2},
        "Open: 2 of 3 runs at batch 64 reached val_acc >= 0.9.",
    ),
    (
        "next_step",
        {"step": "ask_what_can_be_met", "command": ASK},
        "Next: scalelab.load('runs/vit').recommend(max_time='2h') (asks for what can "
        "be met).",
    ),
    (
        "next_step",
        {"step": "measure", "why": "its runs contradict", "takes": "2 GPU-h"}
        | {"command": SWEEP},
        "Next: scalelab.sweep('vit.yaml', trial='gpus=8,local_batch_size=16') (its "
        "runs contradict, 2 GPU-h).",
    ),
    (
        "next_step",
        {"step": "nothing", "command": None},
        "Next: no trial was found that would change the answer.",
    ),
    (
        "next_step",
        {"step": "nothing", "command": None, "drawn": SURE},
        "Next: no measurement of step times would change the answer.",
    ),
    (
        "next_step",
        {"step": "nothing", "command": None, "drawn": SPLIT},
        "Next: 194 of 400 draws choose otherwise, mostly 2 GPUs, and no single trial "
        "settles it.",
    ),
    (
        "next_step",
        {"step": "measure", "why": "it was measured once", "takes": "2 GPU-h"}
        | {"command": SWEEP, "drawn": SPLIT | {"num_others": 1}},
        "Next: scalelab.sweep('vit.yaml', trial='gpus=8,local_batch_size=16') (194 of "
        "400 draws choose 2 GPUs instead, and it was measured once, 2 GPU-h).",
    ),
    (
        "next_step",
        {"step": "mend", "command": None},
        "Next: mend the program where it is contradicted, then measure again.",
    ),
    (
        "next_step",
        {"step": "elsewhere", "command": None, "world_size": 16},
        "Next: measure 16 GPUs on a site that has so many (sweep --site).",
    ),
    (
        "pooled",
        {"settings": ["feed", "framework"]},
        "Samples to the target are pooled over feed and framework: told apart, the "
        "runs would predict one another no better.",
    ),
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
        "Uneven: 16 GPUs (2x8, parallelism=fsdp) with local batch 32 did 3.8 samples/s "
        "each, 32 GPUs did "
        "7.6. It was measured once: measure it again.",
    ),
    (
        "link_unknown",
        {"world_size": 16, "lo_s": 150.0, "hi_s": 7920.0},
        "Between nodes nothing was measured and no link is named: 16 GPUs may take "
        "2.5 min to 2.2 h. between_nodes='200Gbit/s', or what your link has, narrows "
        "that.",
    ),
    (
        "critical_batch",
        {"value": 147.0, "lo": 81.7, "hi": 1274.2, "rule": "linear"},
        "Critical batch with rule linear: about 150 samples [82-1,300]. Up to there, "
        "twice the batch nearly halves the steps; beyond it, more and more of the "
        "samples are wasted.",
    ),
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
        "Learning rates found: 0.1 at batch 32 (best of 8); 0.566 at batch 512 (best "
        "of 5, 0.4 to 0.8 did as well). By the rate of batch 32, batch 512 would get "
        "1.6 from linear, which was not tried, and 0.4 from sqrt, which did as well.",
    ),
    (
        "target_not_measured",
        {"target": "val_acc >= 0.9", "amount": "90 epochs"},
        "Not measured: samples to val_acc >= 0.9; assumes 90 epochs suffice.",
    ),
    (
        "accuracy_not_measured",
        {"global_batch_size": 512, "amount": "90 epochs"},
        "Not measured: accuracy at batch 512; assumes 90 epochs suffice.",
    ),
    (
        "accuracy_alike",
        {"setting": "precision", "value": "bf16"},
        "Accuracy is assumed not to depend on precision (chosen: bf16).",
    ),
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
        "Accuracy of this way: val_acc -0.018 against one process of the same samples, "
        "batch and seed (2 pairs, -0.020 to -0.016), measured on 4 GPUs at global "
        "batch 1,024.",
    ),
    (
        "ruled_out",
        {"reasons": {"rule=adag": "val_acc -0.018", "rule=elastic": "val_acc -0.02"}},
        "Ruled out by accuracy: rule=adag (val_acc -0.018), rule=elastic (val_acc "
        "-0.02).",
    ),
    (
        "flat",
        {"law": "xgboost", "world_size": 64, "least": 16, "most": 128},
        "xgboost is flat beyond what was measured: on more than 64 GPUs, and at local "
        "batches below 16 or above 128, a pass takes as long as at the nearest "
        "measured ones.",
    ),
    (
        "extrapolated",
        PLACE,
        "Extrapolated: nothing was measured on 8 GPUs with local batch 16. Try that "
        "briefly before the job.",
    ),
    (
        "extrapolated",
        {**PLACE, "gradient_accumulation_steps": 4},
        "Extrapolated: nothing was measured on 8 GPUs with local batch 16 x 4 "
        "accumulation steps, of which only the last is taken to exchange gradients. "
        "Try that briefly before the job.",
    ),
    (
        "not_tried",
        {"local_batch_size": 32, "peak_bytes": 13 * 2**30, "capacity_bytes": 2**34},
        "Not tried: local batch 32 there; by measured peaks it takes 13 of the 16 GiB "
        "of a GPU.",
    ),
    (
        "cut_to_an_epoch",
        {"largest": 100},
        "Only global batches up to 100 are considered: that is one epoch.",
    ),
    (
        "against_cheapest",
        {"world_size": 4, "more": 0.26},
        "Device-hours: 26% more than the cheapest, 4 GPUs.",
    ),
    (
        "efficiency",
        {"world_size": 4, "scaling": "weak", "other_settings": {}},
        "Weak efficiency: samples/s per GPU against 4 GPUs at the same batch per GPU.",
    ),
    (
        "above_ideal_on_fewer",
        {"world_size": 4},
        "Efficiency over 100%: fewer devices than 4 GPUs, the smallest measured, "
        "exchange less.",
    ),
    (
        "above_ideal_on_more",
        {"world_size": 1, "why": "by less than runs scatter"},
        "Efficiency over 100%: by less than runs scatter.",
    ),
    (
        "batch_too_large",
        {"world_size": 16, "largest": 256, "why": "one epoch", "may_ask": False},
        "Not chosen: 16 GPUs or more. Their global batch is beyond 256, one epoch.",
    ),
    (
        "unmeasured_not_chosen",
        {"world_sizes": [16, 32], "is_proposed": True},
        "Not chosen: 16, 32 GPUs. They rest on what was not measured here, such as a "
        "second node; accept_unmeasured=True allows them. The proposed trial would "
        "tell.",
    ),
    (
        "considered",
        {
            "least": 1,
            "most": 8,
            "batches": "a global batch of 32",
            "may_ask_devices": True,
            "may_ask_batches": True,
        },
        "Considered: 1 to 8 GPUs, a global batch of 32; gpus allows more of them, "
        "max_batch larger batches.",
    ),
    (
        "replicas_not_divided",
        {"world_sizes": [7, 9], "replica_sizes": [2.0, 4.0]},
        "Not considered: 7, 9 devices. As measured, 2 or 4 devices each compute the "
        "same samples, and that does not divide them.",
    ),
    (
        "replicas_not_known",
        {"shares": [[1, 2], [1, 4]]},
        "Not considered: allocations that were not measured. How many of their ranks "
        "would see different samples cannot be told, since it was 1 of 2, 1 of 4. "
        "Measure an allocation to have it considered.",
    ),
    (
        "batch_not_shared",
        {"world_sizes": [12, 24], "batches": "a global batch of 256"},
        "Not considered: 12, 24 GPUs; a global batch of 256 cannot be shared evenly in "
        "local batches that are known to fit.",
    ),
    (
        "not_identifiable",
        {
            "parameters": ["inter_node_latency", "inter_node_bandwidth"],
            "why": "one node was measured",
            "remedy": "Measure two.",
            "may_learn": True,
        },
        "Not identifiable: inter_node_latency and inter_node_bandwidth, because one "
        "node was measured. Measure two. Or learn from another run on these devices: "
        "learn_from='RUN'.",
    ),
    (
        "device_not_compared",
        {"name": "a100", "why": "None of the 3 rows has a usable step time."},
        "a100 is not compared: None of the 3 rows has a usable step time.",
    ),
    (
        "against_devices",
        {
            "name": "c4",
            "chances": {"faster": {"p2": 0.71, "r4": 1.0}, "cheaper": {"p2": 0.5}},
        },
        "Chance that c4 is faster than p2: 71%, r4: > 99%; cheaper than p2: 50%.",
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
        "4 devices of p2 (measured): 3 times faster for 4% more.",
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
        "Shortest deadline at 90%: 98 min, on 16 GPUs (4x4).",
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
        "Shortest deadline at 90% within 20 usd: none; that is kept with a chance of "
        "20% at most. Cheapest at 90% within 40 min: 21 usd, on 1 device of c4 (1x1).",
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
        "On c4, r4: val_acc -0.034 against one process (3 pairs, -0.040 to -0.030), "
        "measured on 10 devices at global batch 320.",
    ),
    (
        "efficiency_within",
        {},
        "Efficiencies of other devices are against the fewest of their own.",
    ),
    (
        "ruled_out_elsewhere",
        {"names": ["c4"], "reasons": {"local_sgd": "val_acc -0.049"}},
        "Ruled out by accuracy on c4: local_sgd (val_acc -0.049).",
    ),
    (
        "worth_granting",
        {"least": 4, "most": 16, "best": 8},
        "Worth granting: 4 to 16 GPUs, best 8.",
    ),
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
        "Energy is modelled: 150 W per CPU slot of c4, 300 W per GPU of p2, as given, "
        "times a PUE of 1.5; hosts, networks and idle devices are not in it. Carbon: "
        "380 g CO2e per kWh.",
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
        "Energy is measured: 412 to 431 W per GPU, by the rows; hosts, networks and "
        "idle devices are not in it.",
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
        "Chained jobs of at most 24 h on p2: each starts up in 95 s (measured) and, "
        "but for the last, ends with a checkpoint of 60 s (assumed); what they wait "
        "for in the queue is not in their times. 16 GPUs: the fewest on which one job "
        "suffices (90% sure).",
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
        "Of 12 jobs that were followed on such devices, 7 had a step time within the "
        "80% interval of the answer; intervals of step times are moved outwards by 20% "
        "at both ends.",
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
        "Of 1 job that was followed on such devices, 1 had a step time within the 80% "
        "interval of the answer; intervals of step times are as the laws have them.",
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
        "Campaign of 26 runs on 32 GPUs: 24 on 4 GPUs each, 8 side by side; 2 on 16 "
        "GPUs each, which is extrapolated, at once. 6 h [5-7], 190 GPU-h, 380 usd. "
        "Chance of meeting < 8 h: 97%. Instead, one after another on 32: 6 h [5-7], "
        "190 GPU-h; as many as fit, on 1: 6 h [5-7], 190 GPU-h. No plan takes less "
        "than 5 h. All that follows is about one run.",
    ),
    (
        "queue_wait",
        WAIT,
        "In the queue, as of 2026-11-28: 34 jobs of about 8 GPUs waited 2 h (median), "
        "eight of ten at most 9 h; max_time does not include that.",
    ),
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
        "In the queue: 4 jobs of about 8 GPUs of any time limit waited 60 s to 3 h, "
        "too few to say more.",
    ),
    (
        "queue_wait",
        WAIT
        | {"num_started": 1, "median_s": None, "most_s": None, "seen_s": (1.5, 1.5)},
        "In the queue, as of 2026-11-28: 1 job of about 8 GPUs waited 1.5 s, too few "
        "to say more; max_time does not include that.",
    ),
    (
        "queue_wait",
        WAIT | {"num_started": 0, "median_s": None, "most_s": None, "seen_s": None},
        "In the queue, as of 2026-11-28: no job of about 8 GPUs has started, so its "
        "wait is not known (the largest had 4 GPUs); max_time does not include "
        "that.",
    ),
    (
        "by_time_alone",
        {"devices": ["c4", "r4"]},
        "Devices are compared by time alone: no price is known of c4, r4. "
        "price={'DEVICE': '2usd'} says one.",
    ),
    (
        "old_price",
        {"name": "p2", "days": 115, "date": "2026-08-01"},
        "The price of p2 is of 2026-08-01, 115 days ago: look it up again.",
    ),
    (
        "spot_beside",
        BESIDE_SPOT,
        "16 GPUs of p2: on demand 39 usd [38-40], 4.1 h [4-4.2]; on spot 14 usd "
        "[11-19], 5 h [4.4-6.3], with a checkpoint every 20 min, which loses least.",
    ),
    (
        "spot_beside",
        BESIDE_SPOT
        | {"is_gang": False, "name": "", "spot": {"time_s": TAKEN["time_s"]}},
        "16 GPUs: on demand 39 usd [38-40], 4.1 h [4-4.2]; on spot 5 h [4.4-6.3].",
    ),
    (
        "spot_pays",
        {"confidence": 0.9, "kinds": [PAYS]},
        "Spot pays (at least 90% sure): p2 up to 16 GPUs, on 32 its chance is 89%, on "
        "64 GPUs the job would not end.",
    ),
    (
        "spot_pays",
        {
            "confidence": 0.9,
            "kinds": [
                {**PAYS, "up_to": None, "chances": [0.004, 0.0, 0.0]},
                {**PAYS, "name": "c4", "up_to": 32, "never_ends": []},
            ],
        },
        "Spot pays (at least 90% sure): p2 on no count, on 8 GPUs its chance is < 1%, "
        "on 64 GPUs the job would not end; c4 up to 32 GPUs, the most considered.",
    ),
    (
        "spot_terms",
        {"kinds": [{**TERMS, "names": ["c4", "p2"]}]},
        "Spot on c4, p2: a node is interrupted once in 2 h on average, as given; "
        f"{PARTS} {ENDS}",
    ),
    (
        "spot_terms",
        {"kinds": [{**SEEN, "names": ["p2"]}, {**TERMS, "names": ["c4"]}]},
        "Spot on p2: 1 interruption in 40 node-hours of this run, so a node has at "
        f"most 0.12 an hour (95%); {PARTS} Spot on c4: a node is interrupted once in "
        f"2 h on average, as given; {PARTS} {ENDS}",
    ),
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
        "What spot takes hangs on: interruptions twice as often, the job would not "
        "end; checkpoints twice as long, 5 h [4.4-6.3]; waits twice as long, 14 usd "
        "[11-19], 5 h [4.4-6.3]. The others, doubled, change less than 5%.",
    ),
    (
        "spot_hangs_on",
        {"least": 0.05, "currency": "usd", "doubled": {}},
        "None of these terms, doubled, changes time or cost by 5%.",
    ),
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
        "Spot price of p2 over 83.3 days in h.csv: 0.33 usd on average, 80% of the "
        "hours 0.15-0.54, at most 1.4, above the price on demand 2% of the time. It "
        "varies by 61% of its mean; costs take it to go on so.",
    ),
    (
        "spot_never_ends",
        {**TERMS, "name": "p2"},
        "Spot on p2 is not compared: the job would not end. A node is interrupted "
        "every 2 h, and a checkpoint 20 s, a restart 60 s, a new node 5 min take too "
        "long for that.",
    ),
    (
        "spot_not_compared",
        {"names": ["c4", "p2"], "is_price": False},
        "The spot market of c4, p2 is not compared: how often a node is interrupted is "
        "not known. spot={'interrupted_every': '6h'} says it.",
    ),
    (
        "spot_not_compared",
        {"names": ["p2"], "is_price": True},
        "The spot market of p2 is not compared: what it costs is not known. "
        "spot={'price': '0.12usd'} says it.",
    ),
    (
        "costs_contain",
        {"is_interruptible": True},
        "Costs are of the job's own hours, and of what interruptions add to them; "
        "storage, data transfer and repeated runs are not in them.",
    ),
    (
        "costs_contain",
        {"is_interruptible": False},
        "Costs are of the job's own hours at prices on demand; storage, data transfer "
        "and repeated runs are not in them.",
    ),
    (
        "history_not_read",
        {"run": "old"},
        "Nothing was learned from old of the history: it cannot be read. Restore it, "
        "or take it out of that folder.",
    ),
    (
        "import_doubted",
        {"doubt": "2 rows are alike."},
        "The import doubted: 2 rows are alike.",
    ),
]


@pytest.mark.parametrize(("kind", "values", "sentence"), SAID)
def test_a_note_says_its_values(
    kind: str, values: dict[str, Any], sentence: str
) -> None:
    assert in_words(Fact(kind, values), "GPU") == sentence


@pytest.mark.parametrize("contents", get_args(Contents))
def test_times_say_what_they_contain(contents: Contents) -> None:
    values = {"contents": contents, "beside_s": {}, "not_in": ["start-up"]}
    said = in_words(Fact("times_contain", values), "GPU")
    assert said.startswith("Times are of ")
    assert said.endswith("; not in them: start-up.")
    assert judged_times(values) == " (of training steps)"


def test_limits_are_judged_by_the_times_that_were_measured() -> None:
    beside_s = {"start-up": 41.0, "evaluation": 380.0}
    values = {"contents": "steps", "beside_s": beside_s, "not_in": ["checkpoints"]}
    assert in_words(Fact("times_contain", values), "GPU") == (
        "Times are of training steps, start-up (41 s), evaluation (6.3 min); not in "
        "them: checkpoints."
    )
    assert judged_times(values) == " (of training steps and start-up and evaluation)"
    first = in_words(Fact("times_contain", {**values, "of_first_epoch": True}), "GPU")
    assert first.endswith(
        "checkpoints. All were measured within the first epoch: where it fills a "
        "cache, later ones are faster. More measure.steps reach a second one."
    )
    whole = {"contents": "all", "beside_s": {"start-up": 41.0}, "not_in": []}
    assert judged_times(whole) == ""
    assert in_words(Fact("times_contain", whole), "GPU").endswith(", start-up (41 s).")


def test_every_kind_has_a_sentence() -> None:
    assert {kind for kind, _, _ in SAID} | {"times_contain"} == SENTENCES.keys()


def test_every_kind_that_is_noted_has_a_sentence() -> None:
    room = Path(scalelab.__file__).parent
    text = "".join(path.read_text() for path in room.rglob("*.py"))
    noted = {*re.findall(r"\bFact(?:\.of)?\(\s*\"(\w+)\"", text)}
    named = {*re.findall(r"yield \"(\w+)\", ", text)}  # rows beside the chosen one
    named |= {kind for kind, *_ in NOTED}
    assert noted | named == SENTENCES.keys()


@pytest.mark.parametrize(
    ("kind", "values", "option"),
    [
        (
            "batch_too_large",
            {"world_size": 16, "largest": 256, "why": "measured", "may_ask": True},
            "; --max-batch allows more.",
        ),
        (
            "unmeasured_not_chosen",
            {"world_sizes": [16], "is_proposed": False},
            "; --accept-unmeasured ",
        ),
        (
            "next_step",
            {"step": "ask_what_can_be_met", "command": ASK},
            "Next: scalelab recommend runs/vit --max-time 2h (asks for what can be "
            "met).",
        ),
        (
            "not_identifiable",
            {"parameters": ["a"], "why": "b", "remedy": "C.", "may_learn": True},
            "--learn-from RUN.",
        ),
    ],
)
def test_the_command_line_reads_options(
    kind: str, values: dict[str, Any], option: str
) -> None:
    with for_the_command_line():
        assert option in in_words(Fact(kind, values), "GPU")
