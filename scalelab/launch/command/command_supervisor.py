"""The command supervisor: a process that ends everything a command has started.

A program may start processes in sessions and process groups of their own: ``torchrun``
does so with its ranks, and so do shells and daemons. A signal to the program's group
does not reach them, and when the program dies they have no parent. So a small process
stands between the rank server and the program. It becomes the parent of such orphans
and kills them when the program ends and when the rank server dies.
"""

import os
import resource
import signal
from contextlib import suppress
from pathlib import Path
from typing import NoReturn, get_args

from scalelab.experiment.program import StopSignalName
from scalelab.launch.process_tree import adopt_orphans, children, die_with_parent

_SERVER_DIED = signal.SIGRTMAX
_PASSED_ON = tuple(signal.Signals[name] for name in get_args(StopSignalName))
_HEARD = (signal.SIGCHLD, _SERVER_DIED, *_PASSED_ON)


def supervise_command(argv: tuple[str, ...], parent_pid: int) -> NoReturn:
    """Run a program in this process's group, and exit with its exit status.

    The calling process must lead a process group. The program stays in the group, so
    that signals to the group reach it; this process leaves the group, so that they do
    not reach the supervisor. Signals that it gets itself it passes on to the program
    alone, if the agent sent them: the program's children, such as those that load data,
    go on, and what a batch system sends to all processes the program has got itself.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _HEARD)
    adopt_orphans()
    supervisor_pid = os.getpid()

    program_pid = os.fork()
    if program_pid == 0:
        die_with_parent(supervisor_pid)
        # Python ignores these signals, and the program would inherit that.
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HEARD)
        os.execvp(argv[0], argv)

    # Where the server is in another session, the group cannot be joined.
    with suppress(OSError):
        os.setpgid(0, os.getpgid(parent_pid))

    die_with_parent(parent_pid, _SERVER_DIED)
    # The parent of a rank server is the agent.
    stat = Path(f"/proc/{parent_pid}/stat").read_text()
    status = _wait(program_pid, agent_pid=int(stat.rpartition(")")[2].split()[1]))

    while pids := children():  # what they leave behind comes next
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in pids:
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)

    if status < 0:  # the signal to be killed by
        # A core file, if there is to be one, was written by the program.
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with suppress(OSError):  # SIGKILL cannot be, and need not be, reset
            signal.signal(-status, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [-status])
        os.kill(os.getpid(), -status)

    os._exit(status)


def _wait(program_pid: int, agent_pid: int) -> int:
    """Return the exit status of the program; a signal is its negative number."""
    while (heard := signal.sigwaitinfo(_HEARD)).si_signo != _SERVER_DIED:
        if heard.si_signo in _PASSED_ON and heard.si_pid == agent_pid:
            with suppress(ProcessLookupError):
                os.kill(program_pid, heard.si_signo)
        # One SIGCHLD may stand for several children, adopted orphans among them.
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0] != 0:
                if ended[0] == program_pid:
                    return os.waitstatus_to_exitcode(ended[1])
    return -signal.SIGKILL
