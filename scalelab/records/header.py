"""The header of a run: name, schema, and every frozen version of its experiment."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from scalelab.errors import SchemaError, StoreError
from scalelab.records.attempt_io import decode_json, encode_json
from scalelab.records.columns import SCHEMA_VERSION
from scalelab.records.plain_files import harmless_text, read_file
from scalelab.records.provenance import provenance

_EXPERIMENT = re.compile(r"\d{4,}\.yaml")


@dataclass(frozen=True, kw_only=True, slots=True)
class RunHeader:
    """The content of ``run.json``.

    Parameters
    ----------
    versions
        One mapping per frozen experiment, oldest first: ``experiment`` (file name),
        ``frozen_at`` (UTC), ``meaning`` (the fingerprint), ``site`` where not the
        experiment's own, ``provenance``, and ``superseded``: the attempts that ran
        before the code, the command or the measurement changed.
    """

    name: str
    versions: tuple[Mapping[str, Any], ...] = ()

    @property
    def fingerprint(self) -> Mapping[str, Any]:
        """The latest fingerprint: what numbers depend on besides the configuration."""
        fingerprint: Mapping[str, Any] = self.versions[-1]["meaning"]
        return fingerprint

    @property
    def experiment(self) -> str:
        """Name of the latest experiment file."""
        return str(self.versions[-1]["experiment"])

    @property
    def site(self) -> str | None:
        """Name or path of the latest site, where not the experiment's own."""
        return self.versions[-1].get("site")

    @property
    def superseded(self) -> frozenset[tuple[str, int]]:
        """Attempts that ran before the code, command or measurement changed."""
        return frozenset(
            (trial_id, number)
            for version in self.versions
            for trial_id, number in version.get("superseded", ())
        )

    def extended(
        self,
        fingerprint: Mapping[str, Any],
        site: str | None = None,
        code_directory: Path | None = None,
        superseded: Iterable[tuple[str, int]] = (),
    ) -> Self:
        """Return the header with a further version, frozen here and now."""
        version = {
            "experiment": f"{len(self.versions) + 1:04d}.yaml",
            "frozen_at": datetime.now(UTC).isoformat(),
            "meaning": dict(fingerprint),
            "site": site,
            "provenance": provenance(code_directory),
            "superseded": [list(attempt) for attempt in superseded],
        }
        return replace(self, versions=(*self.versions, version))

    def encode(self) -> bytes:
        """Return the content of ``run.json``."""
        return encode_json(
            {
                "schema_version": SCHEMA_VERSION,
                "name": self.name,
                "versions": list(self.versions),
            }
        )


def read_header(path: Path) -> RunHeader:
    """Read ``run.json``."""
    try:
        values = decode_json(read_file(path), is_compared=True)
        schema_version = int(values["schema_version"])
        name = harmless_text(values["name"])
        header = RunHeader(name=name, versions=tuple(values["versions"]))
        for version in header.versions[-1:] or ({},):
            _ = version["meaning"]
            if not _EXPERIMENT.fullmatch(version["experiment"]):
                raise ValueError(f"experiment={version['experiment']!r}")
        _ = header.superseded
    except OSError as error:
        is_absent = isinstance(error, FileNotFoundError | NotADirectoryError)
        why = "no" if is_absent else f"{error.strerror}:"
        raise StoreError(
            f"{path.parent} is not a run directory ({why} {path.name}). Give the "
            "directory of a run, e.g. runs/NAME."
        ) from error
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise StoreError(
            f"{path} is not the header of a run ({error!r}). Give the directory of a "
            "run, e.g. runs/NAME, or restore the file."
        ) from error
    if schema_version > SCHEMA_VERSION:
        raise SchemaError(
            f"{path.parent} has schema_version={schema_version}; this ScaleLab reads "
            f"up to {SCHEMA_VERSION}. Install the ScaleLab that wrote it, or a newer "
            "one."
        )
    return header
