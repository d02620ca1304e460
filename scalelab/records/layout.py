"""The names that the directory of a run may contain, and what each holds.

Whoever adds a file adds its name here: a test puts a link, a pipe, a folder and a
device in the place of every name. Reading the directory of a run unpickles nothing and
executes nothing in it.
"""

NAMES = {
    "run.json": "name, schema version, fingerprint, provenance",
    "experiments/0001.yaml": "the experiment as written; 0002.yaml: its extension",
    "env.json": "values of its variables, for the user alone",
    "ledger.jsonl": "which attempts began and ended; an index",
    "events.jsonl": "what goes on in its sweeps; see control.events",
    "driver.lease": "which driver runs the sweep at the moment",
    "driver.stop": "a request to stop, which the driver removes",
    "driver.log": "the output of a driver that runs in the background",
    "imported.jsonl": "rows of a foreign table, or of the run that this one began from",
    "waits.json": "how long jobs waited in the queue of the cluster",
    "optuna.journal": "the study of a search, as Optuna keeps it",
    "report.html": "the report",
    "code/HASH/FILE": "a snapshot of the user's code",
    "trials/TRIAL/001/attempt.json": "the specification of an attempt",
    "trials/TRIAL/001/result.json": "its outcome and measurements",
    "trials/TRIAL/001/stream.jsonl": "the reports of rank 0 while it runs",
    "trials/TRIAL/001/evaluation.json": "the last evaluation, by class",
    "trials/TRIAL/001/prune": "asks its ranks to end early, and says why",
    "trials/TRIAL/001/rank-0.log": "the output of a rank",
    "trials/TRIAL/001/checkpoint/checkpoint.pt": "where a later attempt goes on",
    "trials/TRIAL/001/output/FILE": "what the user's program writes there",
    "trials/TRIAL/001/probe/NODE/PROCESS.probe": "what the probe saw in a process",
    "jobs/HASH/answer.json": "the answer for which a job script was printed",
    "jobs/HASH/JOB/PROCESS.probe": "what the probe saw in that job",
    "cluster/jobs.json": "the batch jobs of the run",
    "cluster/driver.json": "the batch job that runs the driver",
    "cluster/nodes.json": "how nodes join the driver, for the user alone",
    "cluster/node.sh": "the script of each node of a larger job",
    "cluster/key.pem": "a credential of the nodes; so are ca.pem and cert.pem",
    "cluster/JOB.log": "the output of a batch job",
    "cache/observations.parquet": "the rows as a frame; may be deleted",
    "cache/streams.parquet": "the streams in one file; may be deleted",
    "cache/answers.json": "the latest answers; may be deleted",
}
