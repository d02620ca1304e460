"""Checkpoints of a trial: written atomically, read without running code."""

import math
import os
import re
from pathlib import Path
from typing import Any

import torch

from scalelab.inputs.plain_files import make_folder, opened
from scalelab.records.attempt import AttemptFiles
from scalelab.records.observations import ENGINE_REVISION, FIRST_WITHOUT_MEETINGS
from scalelab.training.context import RankContext
from scalelab.training.seeds import random_state, restore_random_state

FILE_NAME = "checkpoint.pt"


def write(context: RankContext, state: dict[str, Any], rank_state: Any) -> None:
    """Write a checkpoint of all ranks; rank 0 does, the others send their state."""
    state_of_rank = {"random": random_state(context.device), "own": rank_state}
    ranks = context.gather(state_of_rank)
    if not context.is_first:
        return

    directory = context.checkpoint_directory
    make_folder(directory, below=AttemptFiles(context.directory).run)

    unfinished = directory / f"{FILE_NAME}.unfinished"
    unfinished.unlink(missing_ok=True)
    with unfinished.open("xb") as file:
        saved = {"state": state, "ranks": ranks, "engines": ENGINE_REVISION}
        torch.save(saved, file)
        file.flush()
        os.fsync(file.fileno())

    unfinished.replace(directory / FILE_NAME)


def read(context: RankContext, directory: Path) -> tuple[dict[str, Any], Any] | None:
    """Read a checkpoint and restore this rank's random generators."""
    run = AttemptFiles(directory.parent).run
    with opened(directory / FILE_NAME, math.inf, below=run) as file:
        saved = torch.load(file, map_location="cpu", weights_only=True)
    if context.servers and saved.get("engines", 1) < FIRST_WITHOUT_MEETINGS:
        return None
    rank = saved["ranks"][context.rank]
    restore_random_state(rank["random"], context.device)
    return saved["state"], rank["own"]


def latest(attempt_directory: Path) -> Path | None:
    """Return the checkpoint directory to continue from, None for a fresh start.

    Looks at this attempt's own checkpoint, then at those of earlier attempts of the
    same trial, latest first.
    """
    attempt = attempt_directory.name
    if not re.fullmatch(r"\d+", attempt):
        return None

    found = {
        int(directory.parent.name): directory
        for directory in attempt_directory.parent.glob("*/checkpoint")
        if re.fullmatch(r"\d+", directory.parent.name)
        and int(directory.parent.name) <= int(attempt)
        and (directory / FILE_NAME).exists()
    }
    return found[max(found)] if found else None
