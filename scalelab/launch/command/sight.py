"""One look at the ranks of a command: which of them are connected with one another.

All that is on this node is seen: connections of TCP and shared memory between ranks,
and connections that lead to other nodes. Where ScaleLab serves the store at which the
ranks meet, those of other nodes are seen there.
"""

import os
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import Self

from scalelab.launch.command.attempt import CommandAttempt
from scalelab.launch.process_tree import (
    children,
    descendants,
    environment_of,
    has_loaded,
    text_of,
)
from scalelab.launch.rendezvous import Meeting

_ESTABLISHED = "01"
_SOCKET = "socket:["
# What other files map shared and writable, such as caches and data sets, any two
# processes may have open.
_MEMORY = ("/dev/shm/", "/SYSV", "/memfd:")

Place = tuple[str, int]  # numeric address and port
Link = tuple[Place, Place]  # both ends of a TCP connection, the process's own first


@dataclass(frozen=True, slots=True)
class Held:
    """What the processes of one rank hold.

    It is not whole where a process has ended, or is another user's.
    """

    links: frozenset[Link]
    memory: frozenset[tuple[str, str]]
    is_whole: bool

    def meets(self, other: Self) -> bool:
        """Tell whether a connection or a segment leads from one to the other."""
        reached = {(peer, place) for place, peer in self.links}
        return bool(reached & other.links or self.memory & other.memory)


def _tcp_connections(pid: int) -> dict[str, Link]:
    """Return all TCP connections of the host, as a process sees them, by inode.

    Each is its own place and that of its peer. Connections that nobody holds any more
    have the inode 0.
    """
    found = {}
    for name in ("tcp", "tcp6"):
        # Nothing where the process has ended, or there is no IPv6.
        for line in text_of(Path(f"/proc/{pid}/net/{name}")).splitlines()[1:]:
            _, place, peer, state, *_, inode = line.split()[:10]
            if state == _ESTABLISHED:
                found[inode] = (_place(place), _place(peer))
    return found


def _held_by(pids: Iterable[int], connections: Mapping[str, Link]) -> Held:
    links, memory, is_whole = set(), set(), True
    for pid in pids:
        try:
            links |= {
                connections[inode] for inode in _sockets(pid) & connections.keys()
            }
            maps = Path(f"/proc/{pid}/maps").read_text(errors="replace")
        except OSError:  # it has ended, or is another user's
            is_whole = False
            continue
        for line in maps.splitlines():
            _, mode, _, device, inode, *path = line.split(maxsplit=5)
            is_shared = mode.startswith("rw") and mode.endswith("s")
            if is_shared and path and path[0].startswith(_MEMORY):
                memory.add((device, inode))
    return Held(frozenset(links), frozenset(memory), is_whole)


def _sockets(pid: int) -> set[str]:
    names = set()
    for entry in os.scandir(f"/proc/{pid}/fd"):
        with suppress(FileNotFoundError):  # closed in the meantime
            names.add(os.readlink(entry.path))
    return {
        name.removeprefix(_SOCKET).rstrip("]")
        for name in names
        if name.startswith(_SOCKET)
    }


def _place(text: str) -> Place:
    """Return a place as the kernel prints it: hexadecimal, words of the host's order.

    >>> _place("0100007F:A2D8")
    ('127.0.0.1', 41688)
    """
    words, _, port = text.partition(":")
    packed = b"".join(
        int(words[at : at + 8], 16).to_bytes(4, sys.byteorder)
        for at in range(0, len(words), 8)
    )
    address = ip_address(packed)
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped or address), int(port, 16)


_STORE, _SOCKETS = "store", "sockets"
# Under these names a launcher inside the command numbers the ranks that it starts.
_NUMBERS = ("OMPI_COMM_WORLD_LOCAL_RANK", "LOCAL_RANK")
# Ranks may meet through these where nothing is seen, such as on InfiniBand.
_FABRICS = ("libmpi", "libucp.so", "libfabric.so")
# These run a program where it is no child of theirs: in a container, on another host.
_ELSEWHERE = {"docker", "nerdctl", "podman", "conmon", "kubectl", "ssh", "srun"}


@dataclass(frozen=True, slots=True)
class Sight:
    """What one look at the ranks of an attempt has shown.

    ``witness`` is what shows that all of them are connected, ``store`` or ``sockets``.
    """

    num_met: int
    witness: str | None
    is_sure: bool


def sight_of(
    attempt: CommandAttempt, meeting: Meeting, pids: Sequence[int]
) -> Sight | None:
    """Look at all processes that the command supervisors of the first node have."""
    # A supervisor also has the daemons that its program has left behind.
    programs = [children(pid) for pid in pids]
    if len(programs) < len(attempt.ranks) or not all(programs):
        return None

    trees = [_tree(tops) for tops in programs]
    links = _tcp_connections(trees[0][0])

    num_devices = len(attempt.spec.placement.shares[0].device_ids)
    if attempt.launcher.shares_reports:
        numbered = _numbered(trees[0])
        trees = numbered if len(numbered) == num_devices else trees

    if len(trees) < num_devices:
        num_met = _most_alike([pid for tree in trees for pid in tree], links)
        witness = _SOCKETS if num_met >= attempt.spec.trial.world_size else None
        return Sight(num_met, witness, is_sure=False)

    ranks = [_held_by(tree, links) for tree in trees]
    sight = Connections.of(attempt, meeting, ranks, links).sight
    if sight.witness is None and any(_has_ended(tree[0]) for tree in trees):
        return None
    if sight.witness or not sight.is_sure:
        return sight

    is_whole = all(rank.is_whole for rank in ranks)
    return replace(sight, is_sure=is_whole and not any(map(_may_hide, trees)))


def num_at_store(meeting: Meeting, pids: Sequence[int]) -> int:
    """Return how many ranks are connected with the store where they are to meet.

    ``pids`` are the command supervisors of the first node, one for each rank.
    """
    trees = [_tree(tops) for pid in pids if (tops := children(pid))]
    links = _tcp_connections(trees[0][0]) if trees else {}
    return sum(
        any(peer[1] == meeting.port for _, peer in _held_by(tree, links).links)
        for tree in trees
    )


def _tree(tops: Iterable[int]) -> list[int]:
    return [pid for top in tops for pid in (top, *descendants(top))]


def _has_ended(pid: int) -> bool:
    try:
        os.readlink(f"/proc/{pid}/exe")
    except OSError as error:  # it may be another user's
        return isinstance(error, FileNotFoundError)
    return False


def _may_hide(tree: Sequence[int]) -> bool:
    """Tell whether what connects the processes of a rank may not be seen here."""
    try:
        names = {Path(os.readlink(f"/proc/{pid}/exe")).name for pid in tree}
        networks = {os.readlink(f"/proc/{pid}/ns/net") for pid in (os.getpid(), *tree)}
    except OSError:  # one has ended
        return True

    return (
        bool(names & _ELSEWHERE)
        or len(networks) > 1
        or any(has_loaded(tree[0], library) for library in _FABRICS)
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Connections:
    """The connections of the ranks of the first node, as one look shows them.

    ``links`` are all TCP connections of the host, ``awaited`` the ranks of other nodes
    by address, and ``port`` that of the store at which ranks may meet. Ranks on GPUs
    ``may_meet_late``: NCCL connects them when they exchange something first.
    """

    ranks: Sequence[Held]
    links: Mapping[str, Link]
    awaited: Counter[str]
    port: int
    serves_store: bool
    may_meet_late: bool

    @classmethod
    def of(
        cls,
        attempt: CommandAttempt,
        meeting: Meeting,
        ranks: Sequence[Held],
        links: Mapping[str, Link],
    ) -> Self:
        """Return the connections that the ranks of an attempt hold."""
        return cls(
            ranks=ranks,
            links=links,
            awaited=_ranks_of_other_nodes(attempt, meeting),
            port=meeting.port,
            serves_store=attempt.launcher.serves_store,
            may_meet_late=attempt.spec.device_type == "cuda",
        )

    @property
    def sight(self) -> Sight:
        """What they show."""
        waits = self.may_meet_late and self._are_at_one_store
        is_sure = self._shows_all and not waits
        return Sight(self.num_met, self.witness, is_sure=is_sure)

    @property
    def _own_places(self) -> set[Place]:
        return {place for rank in self.ranks for place, _ in rank.links}

    @property
    def _holds_store(self) -> bool:
        """Whether ScaleLab serves the store, and all ranks are connected with it."""
        return self.serves_store and all(
            any(peer[1] == self.port for _, peer in rank.links) for rank in self.ranks
        )

    @property
    def _at_store(self) -> set[Place]:
        """Where others than these ranks are that are connected with the store."""
        peers = {peer for place, peer in self.links.values() if place[1] == self.port}
        return peers - self._own_places

    @property
    def arrived(self) -> Counter[str]:
        """The ranks of other nodes that are connected with the store, by address."""
        return Counter(address for address, _ in self._at_store) & self.awaited

    @property
    def num_met(self) -> int:
        """The most ranks that are connected with one another, directly or not."""
        known = self._own_places
        # Connections to other nodes count as one to a further rank.
        outside = {
            (peer, place)
            for rank in self.ranks
            for place, peer in rank.links
            if peer[0] in self.awaited and peer not in known and peer[1] != self.port
        }

        elsewhere = Held(frozenset(outside), frozenset(), is_whole=True)

        met = max(_groups([*self.ranks, elsewhere]), key=len)
        if len(self.ranks) not in met:
            return len(met)

        others = self.arrived if self._holds_store else self.awaited
        return len(met) - 1 + others.total()

    @property
    def witness(self) -> str | None:
        """What shows that all ranks are connected; None: nothing does."""
        if self.num_met < len(self.ranks) + self.awaited.total():
            return None
        return _STORE if self._holds_store else _SOCKETS

    @property
    def _shows_all(self) -> bool:
        """Whether ranks of other nodes would be seen if they were connected.

        They may be reached at addresses that ScaleLab was not told of.
        """
        if not self.awaited:
            return True
        have_arrived = len(self._at_store) >= self.awaited.total()
        leave = any(
            place[0] != peer[0] and peer[1] != self.port
            for rank in self.ranks
            for place, peer in rank.links
        )
        may_have_met = leave or (self._holds_store and have_arrived)
        return self.serves_store and not may_have_met

    @property
    def _are_at_one_store(self) -> bool:
        """Whether all ranks are connected with ScaleLab's store, or a launcher's."""
        places = (
            {
                peer
                for place, peer in rank.links
                if peer[1] == self.port or peer[0] == place[0]
            }
            for rank in self.ranks
        )
        return bool(set.intersection(*places))


def _ranks_of_other_nodes(attempt: CommandAttempt, meeting: Meeting) -> Counter[str]:
    counts = (
        [len(share.device_ids) for share in attempt.spec.placement.shares]
        if attempt.launcher.shares_reports
        else [len(devices) for devices in attempt.device_ids]
    )
    ranks: Counter[str] = Counter()
    for host, count in zip(meeting.hosts[1:], counts[1:], strict=True):
        ranks[host] += count
    return ranks


def _groups(
    all_held: Sequence[Held], are_joined: Callable[[Held, Held], bool] = Held.meets
) -> list[set[int]]:
    """Return the indices of those that are joined, directly or through others."""
    groups: list[set[int]] = []
    for index, held in enumerate(all_held):
        joined = [
            group
            for group in groups
            if any(are_joined(held, all_held[at]) for at in group)
        ]
        groups = [group for group in groups if group not in joined]
        groups.append({index}.union(*joined))
    return groups


def _most_alike(pids: Sequence[int], links: Mapping[str, Link]) -> int:
    """Return the most processes of one program that TCP connects with one another.

    Where ranks are not told apart, each process may be one. Workers that load data
    share memory with their rank, or were forked from it and hold the same connections;
    other helpers are of other programs.
    """
    held = [replace(_held_by([pid], links), memory=frozenset()) for pid in pids]
    families = _groups(held, lambda one, other: bool(one.links & other.links))
    ranks = [
        replace(held[0], links=frozenset().union(*(held[at].links for at in family)))
        for family in families
    ]
    programs = [_program(pids[min(family)]) for family in families]
    return max(
        max(Counter(programs[at] for at in group).values()) for group in _groups(ranks)
    )


def _program(pid: int) -> str:
    with suppress(OSError):
        return os.readlink(f"/proc/{pid}/exe")
    return ""


def _numbered(pids: Sequence[int]) -> list[list[int]]:
    """Group the processes of a program by the number of the rank that they belong to.

    Left out are those that have the number, if any, that the program itself is given.
    """
    ranks: dict[str | None, list[int]] = defaultdict(list)
    for pid in pids:
        environment = environment_of(pid)
        ranks[
            next((environment[name] for name in _NUMBERS if name in environment), None)
        ].append(pid)

    return [
        group
        for number, group in ranks.items()
        if number is not None and pids[0] not in group
    ]
