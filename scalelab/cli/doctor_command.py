from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scalelab.cli.arguments import flag, option
from scalelab.errors import SpecError
from scalelab.inputs.lines import one_line

if TYPE_CHECKING:
    from scalelab.doctor.site import Finding

SOMETHING_BROKEN, SITE_BROKEN = 1, 3
_SUBJECT_COLUMNS, _GROUP_COLUMNS = 17, 15


def run(
    runs: Annotated[Path, option("DIR", "Where runs are written.")] = Path("runs"),
    site: Annotated[
        str | None, option("NAME", "Check this site: name or path of its profile.")
    ] = None,
    job: Annotated[
        bool, flag("--job", "With --site: also run one short job on a node.")
    ] = False,
    kinds: Annotated[
        bool, flag("--kinds", "Check what may be named, from other distributions too.")
    ] = False,
) -> None:
    """Check whether sweeps can run on this machine, part by part.

    With --site, check whether they can run there: without device time, or by one
    short job. With --kinds, list the strategies, launchers, batch systems, resources,
    sources and trainers that are installed, and check each.
    """
    if kinds:
        if site is not None or job:
            raise SpecError(
                "--kinds looks at this environment: leave out --site.",
                code="kinds_of_site",
            )
        from scalelab.doctor.kinds import SUBJECT_COLUMNS, examine_kinds

        _report(
            [examine_kinds()],
            SUBJECT_COLUMNS,
            well="All of these can be named: docs/extending.md says how to add others.",
            ill="What is broken cannot be named until it is repaired.",
        )
    elif site is not None:
        _check_site(runs, site, with_job=job)
    elif job:
        raise SpecError(
            "--job tries a node of a site. Name the site: --site NAME.",
            code="job_without_site",
        )
    else:
        from scalelab.doctor.site import examine

        _report(
            [examine(runs)],
            _SUBJECT_COLUMNS,
            well="Sweeps can run here: scalelab sweep EXPERIMENT.yaml",
            ill="Sweeps cannot run here until what is broken is repaired.",
        )


def _check_site(runs: Path, name: str, *, with_job: bool) -> None:
    from scalelab.doctor.site import examine_site
    from scalelab.doctor.site_trial import try_nodes
    from scalelab.site.choice import find_site

    site = find_site(name)
    groups = ", ".join(filter(None, site.groups))

    checks = [examine_site(site, runs)]
    if with_job:
        checks.append(try_nodes(site, runs, lambda text: typer.echo(text, err=True)))

    _report(
        checks,
        _SUBJECT_COLUMNS + min(len(groups), _GROUP_COLUMNS),
        well=f"Sweeps can run there: scalelab sweep EXPERIMENT.yaml --site {name}",
        ill=f"Sweeps on {site.name} will fail until what is broken is repaired.",
        exit_code=SITE_BROKEN,
    )


def _report(
    checks: Iterable[Iterable[Finding]],
    width: int,
    *,
    well: str,
    ill: str,
    exit_code: int = SOMETHING_BROKEN,
) -> None:
    from scalelab.doctor.site import Health

    is_broken = False
    for finding in chain.from_iterable(checks):
        is_broken |= finding.health is Health.BROKEN
        text = one_line(finding.text)
        typer.echo(f"{finding.health:<7} {finding.subject:<{width}} {text}")

    typer.echo(ill if is_broken else well)
    if is_broken:
        raise typer.Exit(exit_code)
