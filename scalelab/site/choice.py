"""Finding a site: by the name of its profile, by a path, or from its settings."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Union, cast

from pydantic import (
    BaseModel,
    BeforeValidator,
    Discriminator,
    Tag,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)

from scalelab.errors import SpecError
from scalelab.inputs.document import paragraph, parse_document, read_document
from scalelab.inputs.problems import model_in, one_of, shown, validated
from scalelab.kinds.batch_systems import BATCH_SYSTEMS
from scalelab.kinds.registry import imported
from scalelab.site.profile import AllocationSite, LocalSite, Site

LOCAL = "local"
_WITHOUT_BATCH_SYSTEM: Mapping[str, type[Site]] = {
    LOCAL: LocalSite,
    "allocation": AllocationSite,
}
_BUILT_IN: Mapping[str, type[Site]] = {
    **{row.name: imported(row.site) for row in BATCH_SYSTEMS.built_in},
    **_WITHOUT_BATCH_SYSTEM,
}


def site_class(scheduler: object) -> type[Site]:
    """Return the class of the sites of a scheduler."""
    if not isinstance(scheduler, str):
        raise SpecError(
            f"scheduler={shown(scheduler)} is not a name.", code="not_a_name"
        )
    if scheduler in _BUILT_IN:
        return _BUILT_IN[scheduler]

    if scheduler not in BATCH_SYSTEMS:
        names = [*_WITHOUT_BATCH_SYSTEM, *BATCH_SYSTEMS.names]
        raise SpecError(
            f"scheduler={shown(scheduler)} is not known. {one_of(names, scheduler)}",
            code="unknown_scheduler",
        )

    return cast(type[Site], imported(BATCH_SYSTEMS[scheduler].site))


def site_of(values: Mapping[str, Any], *, source: str = "site") -> Site:
    """Return the site with these settings, of the class of its scheduler.

    Examples
    --------
    >>> site_of({"device_type": "cpu", "gpus_per_node": 4}).num_devices
    4
    """
    try:
        settings = _own_settings(values)
    except SpecError as error:
        raise paragraph(f"{source}: {error}", code=error.code) from error
    return validated(site_class(_scheduler(settings)), settings, source=source)


def _scheduler(values: Any) -> Any:
    if isinstance(values, Site):
        return values.scheduler
    return values.get("scheduler", LOCAL)


def _own_settings(values: Any) -> Any:
    if isinstance(values, Site):
        return values
    if not isinstance(values, Mapping):
        raise SpecError(
            f"{shown(values)} is no site. Write the name of a profile, or the settings "
            "of a site as a mapping of keys to values.",
            code="not_a_site",
        )

    scheduler = _scheduler(values)
    return _own_keys(values, scheduler, {**_BUILT_IN, scheduler: site_class(scheduler)})


def _own_keys(
    values: Any,
    scheduler: str,
    models: Mapping[str, type[BaseModel] | None],
    prefix: str = "",
) -> Any:
    """Return settings without empty ones of other schedulers; so too of their parts."""
    if not isinstance(values, Mapping) or not models.get(scheduler):
        return values
    found = {}
    for key, value in values.items():
        fields = {
            name: model.model_fields[key]
            for name, model in models.items()
            if model and key in model.model_fields
        }
        if scheduler in fields or not fields:
            parts = {name: model_in(field.annotation) for name, field in fields.items()}
            if key == "node_groups" and isinstance(value, Mapping):
                found[key] = {
                    name: _own_keys(group, scheduler, parts, f"{key}.{name}: ")
                    for name, group in value.items()
                }
            else:
                found[key] = _own_keys(value, scheduler, parts, f"{key}: ")
        elif value:  # what is null, false or empty says nothing
            raise SpecError(
                f"{prefix}{key} belongs to scheduler {' or '.join(fields)}, but this "
                f"site has scheduler={scheduler}. Remove it or change the scheduler.",
                code="key_of_other_scheduler",
            )

    return found


def _from_outside(values: Any, built_in: ValidatorFunctionWrapHandler) -> Any:
    if isinstance(values, Site) or _scheduler(values) in _BUILT_IN:
        return built_in(values)
    return site_of(values, source=f"scheduler={_scheduler(values)}")


if TYPE_CHECKING:
    AnySite = Site
else:
    # The discriminated union of all built-in sites, which editors know by its schema.
    AnySite = Annotated[
        Union[  # noqa: UP007  its members are only known here
            tuple(Annotated[site, Tag(f"<{name}>")] for name, site in _BUILT_IN.items())
        ],
        Discriminator(lambda values: f"<{_scheduler(values)}>"),
        WrapValidator(_from_outside),
        BeforeValidator(_own_settings),
    ]


def find_site(name_or_path: str) -> Site:
    """Return a site by the name of its profile or by the path of a YAML file.

    Profiles lie in ``$XDG_CONFIG_HOME/scalelab/sites`` (``~/.config`` by default).
    """
    if is_path(name_or_path):
        return read_site(Path(name_or_path).expanduser())
    profiles = available_sites()
    if name_or_path in profiles:
        return read_site(profiles[name_or_path])
    if name_or_path == LOCAL:
        return LocalSite()

    raise paragraph(
        f"no site is called {name_or_path[:60]!r}. "
        f"{one_of([*profiles, LOCAL], name_or_path)} Profiles are read from "
        f"{sites_directory()}/NAME.yaml; a path to a YAML file works too.",
        code="unknown_site",
    )


def read_site(path: Path) -> Site:
    """Read a profile; a site without a name is called like its file."""
    return site_in(read_document(path), path)


def site_in(text: str, path: Path) -> Site:
    """Return the site that a profile describes, called like its file by default."""
    values = parse_document(text, source=str(path))
    return site_of({"name": path.stem, **values}, source=str(path))


def is_path(name_or_path: str) -> bool:
    """Tell whether a site is named by the path of its profile."""
    return "/" in name_or_path or name_or_path.endswith((".yaml", ".yml"))


def lasting_name(name_or_path: str) -> str:
    """Return a name or absolute path of the site, valid in any directory."""
    if not is_path(name_or_path):
        return name_or_path
    return str(Path(name_or_path).expanduser().absolute())


def sites_directory() -> Path:
    """Return the directory of the user's site profiles."""
    return _of_user("CONFIG", ".config") / "sites"


def history_directory() -> Path:
    """Return where the user's finished runs lie, to learn step times from."""
    return _of_user("CONFIG", ".config") / "history"


def cache_directory() -> Path:
    """Return where files lie that may be deleted at any time."""
    return _of_user("CACHE", ".cache")


def _of_user(kind: str, usual: str) -> Path:
    return Path(os.environ.get(f"XDG_{kind}_HOME") or Path.home() / usual) / "scalelab"


def available_sites() -> dict[str, Path]:
    """Return the user's site profiles by name."""
    return {path.stem: path for path in sorted(sites_directory().glob("*.yaml"))}
