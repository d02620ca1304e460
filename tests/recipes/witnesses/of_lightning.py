"""Runs a script; its Lightning Trainer says what it counts, times and logs."""

import json
import os
import runpy
import sys
import time

import lightning as L


class Witness(L.Callback):
    samples = 0

    def on_train_start(self, trainer, module):
        self.file = open(os.environ["SCALELAB_TRIAL_DIR"] + "/witness.jsonl", "a")

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.samples += len(batch[0]) * trainer.world_size
        said = {"loss": trainer.callback_metrics["train_loss"].item()}
        if (batch_idx + 1) % trainer.accumulate_grad_batches == 0:
            said["step"] = trainer.global_step
            said["t"] = time.monotonic()
            said["samples"] = self.samples
        if trainer.is_global_zero:
            self.file.write(json.dumps(said) + "\n")
            self.file.flush()


fit = L.Trainer.fit


def witnessed_fit(self, *args, **kwargs):
    self.callbacks.append(Witness())
    return fit(self, *args, **kwargs)


L.Trainer.fit = witnessed_fit
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
