"""The trials of a sweep, and how long they will take."""

from scalelab.inputs.guessed import refuse_calls

refuse_calls(__name__, "scalelab.dry_run('experiment.yaml')")
