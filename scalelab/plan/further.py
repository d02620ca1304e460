"""One trial more than an experiment asks for, such as the one an answer proposes."""

from collections.abc import Collection, Iterable, Mapping

from scalelab.errors import SpecError
from scalelab.experiment.rates import RateSetting
from scalelab.experiment.spec import Experiment
from scalelab.experiment.trial import Trial, TrialKind
from scalelab.inputs.allocation import Allocation
from scalelab.inputs.document import Scalar
from scalelab.inputs.numerals import counted
from scalelab.inputs.problems import Option, one_of, shown
from scalelab.plan.configurations import BatchRequest, Setup, setups
from scalelab.plan.expand import trial_of
from scalelab.site.profile import Site

_EXAMPLE = "gpus=16,nodes=2,local_batch_size=64"
_COUNTS = ("gpus", "nodes", "local_batch_size", "gradient_accumulation_steps")
_RATE = "lr_rule"


def further_trial(
    experiment: Experiment, site: Site, text: str, known: Collection[str]
) -> Trial:
    """Return the trial that a text asks for, as a repeat that is new.

    Parameters
    ----------
    text
        ``gpus``, ``nodes`` (default: as few as hold them), ``local_batch_size``,
        ``gradient_accumulation_steps``, ``kind`` (default: throughput) and settings
        that the experiment varies, as ``gpus=16,nodes=2,local_batch_size=64``.
    known
        Identifiers of the trials that are planned or have ended.

    Raises
    ------
    SpecError
        If the text is wrong, or asks for what the experiment does not have.
    """
    if experiment.tune:
        why = f"{experiment.name} is a search, which chooses its trials by itself"
        raise _refused(why, "Leave it out.")

    words = _words(text)
    counts = {name: _count(name, words.pop(name)) for name in _COUNTS if name in words}

    missing = [name for name in ("gpus", "local_batch_size") if name not in counts]
    if missing:
        raise _refused(f"{shown(text)} says no {missing[0]}")

    kind = TrialKind(_known("kind", words.pop("kind", "throughput"), [*TrialKind]))
    rate = _rate(experiment, words.pop(_RATE, None))
    setup = _setup(experiment, site, words)
    size = counts["gpus"]

    nodes = counts.get("nodes", -(-size // site.devices_per_node))
    if nodes > size:
        raise _refused(f"nodes={nodes} is more than gpus={size}")

    allocation = Allocation.spread(size, nodes)
    if -(-size // nodes) > site.devices_per_node or nodes > (site.num_nodes or nodes):
        have = f"{counted(site.num_nodes, 'node')} x " if site.num_nodes else ""
        devices = counted(site.devices_per_node, "device")
        raise _refused(f"{allocation} does not fit the site, {have}{devices} on a node")

    request = BatchRequest(
        local_batch_size=counts["local_batch_size"],
        gradient_accumulation_steps=counts.get("gradient_accumulation_steps", 1),
    )
    configuration = setup.on(allocation, request)

    repeat = 0
    while (
        trial := trial_of(experiment, configuration, kind, rate=rate, repeat=repeat)
    ).trial_id in known:
        repeat += 1

    return trial


def _words(text: str) -> dict[str, str]:
    pairs = [word.partition("=") for word in text.split(",")]
    broken = [name for name, sign, value in pairs if not (sign and value.strip())]
    if broken:
        raise _refused(f"{shown(broken[0])} is no NAME=VALUE")
    return {name.strip(): value.strip() for name, _, value in pairs}


def _refused(why: str, remedy: str = f"Write, for example, {_EXAMPLE}.") -> SpecError:
    return SpecError(f"{Option('trial')}: {why}.", remedy, code="trial_refused")


def _count(name: str, text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise _refused(f"{name}={text[:60]} must be a whole number of at least 1")
    return int(text)


def _known(name: str, value: str, among: Iterable[Scalar]) -> str:
    known = [*dict.fromkeys(map(str, among))]
    if value not in known:
        why = f"{name}={value[:60]} is not among what this experiment varies"
        raise _refused(why, one_of(known, value))
    return value


def _rate(experiment: Experiment, rule: str | None) -> RateSetting | None:
    rates = {str(rate.rule): rate for rate in experiment.rate_settings if rate}
    return rates[_known(_RATE, rule, rates)] if rule and rates else None


def _setup(experiment: Experiment, site: Site, asked: Mapping[str, str]) -> Setup:
    every = [(setup, _settings(setup)) for setup in setups(experiment, site)]
    names = {name for _, settings in every for name in settings}
    for name, value in asked.items():
        _known("the setting", name, sorted(names))
        fitting = [pair for pair in every if str(pair[1].get(name)) == value]
        if not fitting:
            _known(name, value, (settings.get(name, "none") for _, settings in every))
        every = fitting
    return every[0][0]


def _settings(setup: Setup) -> dict[str, Scalar]:
    degrees = setup.layout.degrees if setup.layout else {}
    named = {"node_group": setup.node_group, "program": setup.program}
    return {
        "precision": setup.precision,
        "parallelism": setup.parallelism,
        **setup.options,
        **degrees,
        **{name: value for name, value in named.items() if value is not None},
    }
