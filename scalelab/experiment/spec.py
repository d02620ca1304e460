"""The experiment of a user: read from YAML and checked."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import PrivateAttr, model_validator

from scalelab.errors import SpecError
from scalelab.experiment.checks import check_program
from scalelab.experiment.fingerprint import ACCEPT, program_key
from scalelab.experiment.keys import PROBED, ExperimentKeys
from scalelab.experiment.measure import DEFAULT_METRICS
from scalelab.experiment.program import CommandProgram, Program, WorkloadProgram
from scalelab.experiment.trial import TrialKind
from scalelab.inputs.document import parse_document, read_document
from scalelab.inputs.problems import validated
from scalelab.kinds.trainers import COMMAND, WorkloadFacts, facts_of
from scalelab.site.choice import find_site
from scalelab.site.profile import LocalSite, Site

# The family of trials in a fingerprint.
_LONG_TRIALS = "measure.long_trial"


class Experiment(ExperimentKeys):
    """An experiment: the program to run, the axes to vary, the job to answer for.

    Read it with :meth:`from_file`; the fields are the keys of the YAML.
    """

    _directory: Path = PrivateAttr(default=Path())

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        check_program(self)
        return self

    @classmethod
    def from_file(cls, path: str | Path) -> Self:
        """Read an experiment from a YAML file."""
        path = Path(path)
        return cls.from_text(
            read_document(path), source=str(path), directory=path.parent
        )

    @classmethod
    def from_text(
        cls, text: str, *, source: str = "experiment", directory: Path | None = None
    ) -> Self:
        """Read an experiment from YAML text."""
        experiment = validated(cls, parse_document(text, source=source), source=source)
        experiment._directory = directory or Path()
        return experiment

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """Return the JSON schema that editors complete and check against."""
        return {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            **cls.model_json_schema(),
            "title": "ScaleLab experiment",
        }

    @property
    def code_root(self) -> Path:
        """Folder of the user's code, absolute."""
        root = self.code.root if self.code and self.code.root else "."
        return (self._directory / Path(root).expanduser()).resolve()

    @property
    def snapshot_paths(self) -> tuple[str, ...]:
        """Files and folders below ``code_root`` that trials run from a copy of."""
        return self.code.snapshot if self.code else ()

    @property
    def workload_name(self) -> str:
        """Value of ``Trial.workload``: the workload's name, or ``command``."""
        return self.workload.name if self.workload else COMMAND

    @property
    def facts(self) -> WorkloadFacts | None:
        """What is known of the workload beforehand; None: nothing."""
        return facts_of(self.workload_name)

    @property
    def has_batch_norm(self) -> bool:
        """Batch norm is used, so convergence may depend on the local batch as well."""
        if self.measure.batch_norm is not None:
            return self.measure.batch_norm
        facts = self.facts
        if facts is None or self.workload is None:
            return True
        return bool(self.workload.parameters.get("batch_norm", facts.has_batch_norm))

    def resolve_site(self, override: str | None = None) -> Site:
        """Return the override, else the experiment's own site, else this machine."""
        chosen = override or self.site or LocalSite()
        return chosen if isinstance(chosen, Site) else find_site(chosen)

    def inherited(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return the variables under ``env_from`` as an environment has them."""
        for name in self.env_from:
            if name not in environment:
                raise SpecError(
                    f"env_from: {name} is not set in the environment of the driver. "
                    f"Set it where the sweep is started (export {name}=...; for a "
                    "driver_job, in what that job runs first), or remove it.",
                    code="variable_not_set",
                )
        return {name: environment[name] for name in self.env_from}

    def programs(
        self,
        code_directory: Path | None = None,
        inherited: Mapping[str, str] | None = None,
    ) -> dict[str | None, Program]:
        """Return what trials run, by the name of their program; None: it has none."""
        directory = str(code_directory or self.code_root)
        if self.workload:
            workload = WorkloadProgram(
                name=self.workload.name,
                parameters=self.workload.parameters,
                code_directory=None if self.facts else directory,
            )
            return {None: workload}

        return {
            name: CommandProgram(
                command=alone.command or "",
                launcher=alone.launcher.name,
                env=alone.env,
                metrics=(alone.metrics or DEFAULT_METRICS).source(),
                code_directory=directory,
                name=self.name,
                inherited=inherited or {},
                stop=self.stop.request() if self.stop else None,
                launcher_options=alone.launcher.parameters,
                tokens_per_sample=self.job.sequence_length if self.job else None,
                without_probe=self.probe != PROBED,
            )
            for name, alone in self.by_program().items()
        }

    def fingerprint(
        self,
        *,
        code_hash: str | None = None,
        device_type: str | None = None,
        code_of_programs: Mapping[str, str | None] | None = None,
    ) -> dict[str, Any]:
        """Return the fingerprint: what numbers depend on besides the configuration.

        Axes, repeats and the job's length are not in it: changing them extends a run.
        Of several programs each has an entry of its own, so that one more extends it.
        Compare two with :func:`~scalelab.experiment.fingerprint.fingerprint_changes`.
        """
        fingerprint: dict[str, Any] = {
            "workload": self.workload_name,
            "parameters": self.workload.parameters if self.workload else {},
            "command": self.command,
            "launcher": self.launcher.as_text() if self.command else None,
            "env": dict(self.env),
            "metrics": self._fingerprint_of_metrics() if self.command else None,
            "code_hash": code_hash,
            "device_type": device_type,
        }

        alone = self.by_program()
        for program in self.program or ():
            fingerprint[program_key(program.name)] = {
                "command": program.command,
                "launcher": alone[program.name].launcher.as_text(),
                "env": dict(program.env),
                "metrics": alone[program.name]._fingerprint_of_metrics(),
                "code_hash": (code_of_programs or {}).get(program.name),
            }

        if self.probe != PROBED:
            fingerprint["probe"] = self.probe
        if self.accept:
            fingerprint[ACCEPT] = list(map(str, self.accept))
        if self.env_from:
            fingerprint["env_from"] = sorted(self.env_from)

        for kind in self.measure.kind:
            fingerprint[f"measure.{kind}"] = self._fingerprint_of(kind)
        if self.measure.long_trial:
            fingerprint[_LONG_TRIALS] = True

        return fingerprint

    def as_in(self, fingerprint: Mapping[str, Any]) -> Self:
        """Return the experiment as a run of this fingerprint asks for it.

        A run that began before there were long trials has no such trial, unless the
        experiment names ``measure.long_trial``.
        """
        is_named = "long_trial" in self.measure.model_fields_set
        if is_named or _LONG_TRIALS in fingerprint:
            return self
        measure = self.measure.model_copy(update={"long_trial": 0.0})
        return self.model_copy(update={"measure": measure})

    def _fingerprint_of_metrics(self) -> dict[str, Any]:
        # Keys that are not used are left out, unless runs before them have them.
        values = (self.metrics or DEFAULT_METRICS).model_dump(mode="json")
        return {
            name: value
            for name, value in values.items()
            if value or name in ("jsonl", "regex")
        }

    def _fingerprint_of(self, kind: TrialKind) -> Mapping[str, Any]:
        if kind is TrialKind.THROUGHPUT:
            irrelevant = {"warmup_steps", "steps", "relative_precision"}
            return self.measure.model_dump(mode="json", include=irrelevant)
        irrelevant = {"evaluate_every_samples", "max_samples", "max_epochs"}
        of_answer = {"global_batch_size", "flops_per_sample", "device_peak_flops"}
        job = self.job.model_dump(mode="json", exclude=of_answer) if self.job else {}
        return {**self.measure.model_dump(mode="json", include=irrelevant), "job": job}
