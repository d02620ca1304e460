"""The exceptions that ScaleLab raises on purpose.

::

    ScaleLabError
    |-- SpecError(ValueError)      the user's input is wrong              exit code 2
    |-- ClusterError               the cluster refused or vanished        exit code 3
    |   `-- BusyError              it takes no request now, but may later
    |-- LaunchError                a node could not start or end ranks    exit code 3
    |-- StoreError                 a run directory cannot be read/written exit code 2
    |   |-- DiskFullError          the disk or a quota has no space left
    |   |-- LeaseError             another driver holds the run
    |   `-- SchemaError            records of a newer or unknown schema
    |-- MissingExtraError          an optional dependency is not installed exit code 2
    `-- FitError                   a law cannot be fitted to these rows   exit code 2
        |-- UnmeasuredError        no row has a usable step time          exit code 1
        `-- NotIdentifiableError   the rows cannot tell; names what would

A failed *trial* is data, not an exception: see
:class:`scalelab.inputs.outcome.Outcome`.
"""

# Exit codes of ends that are no errors.
NOT_ALL_MEASURED = SLOWER = 1
NOTHING_MEETS, INTERRUPTED, READER_LEFT = 4, 130, 141


class ScaleLabError(Exception):
    """Root of every error ScaleLab raises on purpose.

    Parameters
    ----------
    message
        What is wrong, with name and value, and the rule.
    hint
        What to do; empty where the message says it.
    code
        The name of the refusal, for programs and tests; empty: the kind.

    Attributes
    ----------
    kind
        What went wrong, for programs. Refusals of one kind have several codes.
    """

    kind = "error"
    exit_code = 2

    def __init__(self, message: str = "", hint: str = "", *, code: str = "") -> None:
        super().__init__(message, hint)
        self.message, self.hint = message, hint
        self.code = code or self.kind

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".rstrip()


class SpecError(ScaleLabError, ValueError):
    """The user's experiment, site, table or option is wrong."""

    kind = "input"


class ClusterError(ScaleLabError):
    """The cluster refused a request, never came up, or vanished."""

    kind = "cluster"
    exit_code = 3


class BusyError(ClusterError):
    """The batch system is busy, full or out of reach: the same request may succeed."""

    kind = "busy"


class LaunchError(ScaleLabError):
    """A node could not start, reach or end the ranks of an attempt."""

    kind = "launch"
    exit_code = 3


class StoreError(ScaleLabError):
    """A run directory cannot be read or written."""

    kind = "store"


class DiskFullError(StoreError):
    """The disk of a run directory, or a quota or limit on it, leaves no space."""

    kind = "disk_full"


class LeaseError(StoreError):
    """Another live driver holds this run."""

    kind = "lease"


class SchemaError(StoreError):
    """Records carry a schema version this ScaleLab cannot read."""

    kind = "schema"


def install_command(extra: str) -> str:
    """Return the command that installs an extra from where ScaleLab came from.

    That is a checkout or a wheel on this machine, else a package index.
    """
    import json
    from importlib.metadata import distributions
    from urllib.parse import unquote, urlsplit

    known = (d.read_text("direct_url.json") for d in distributions(name="scalelab"))
    came_from = json.loads(next(filter(None, known), "{}"))
    url = urlsplit(came_from.get("url", ""))
    place = unquote(url.path) if url.scheme == "file" else "scalelab"
    is_editable = came_from.get("dir_info", {}).get("editable")
    return f"pip install {'-e ' if is_editable else ''}'{place}[{extra}]'"


class MissingExtraError(ScaleLabError):
    """An optional dependency is not installed."""

    kind = "missing_extra"

    def __init__(self, feature: str, extra: str) -> None:
        super().__init__(
            f"{feature} needs packages that are not installed.",
            f"Install them with: {install_command(extra)}",
        )


class FitError(ScaleLabError):
    """A law cannot be fitted to these observations."""

    kind = "fit"


class UnmeasuredError(FitError):
    """No observation has a step time that an answer could rest on."""

    kind = "unmeasured"
    exit_code = 1


class NotIdentifiableError(FitError):
    """The observations cannot determine a parameter."""

    kind = "not_identifiable"

    def __init__(self, parameter: str, remedy: str) -> None:
        verb = "are" if " and " in parameter else "is"
        super().__init__(f"{parameter} {verb} not identifiable.", remedy)
        self.parameter = parameter
        self.remedy = remedy
