"""Runs a script; its Trainer says what it counts, times and logs."""

import json
import os
import runpy
import sys
import time

from transformers import TrainerCallback, trainer


class Witness(TrainerCallback):
    def on_train_begin(self, args, state, control, **kwargs):
        self.file = open(os.environ["SCALELAB_TRIAL_DIR"] + "/witness.jsonl", "a")

    def on_step_end(self, args, state, control, **kwargs):
        self.now = time.monotonic()

    def on_log(self, args, state, control, logs, **kwargs):
        if state.is_world_process_zero and "loss" in logs:
            batch = args.train_batch_size * args.gradient_accumulation_steps
            said = {
                "step": state.global_step,
                "t": self.now,
                "samples": state.global_step * batch * args.world_size,
                "loss": float(logs["loss"]),
            }
            self.file.write(json.dumps(said) + "\n")
            self.file.flush()


trainer.DEFAULT_CALLBACKS.append(Witness)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
