"""`kbench launch`: a whole cluster on this machine, to try it out.

python -m kbench launch --workers=2 --ps=1 -- --model=resnet20 ...
"""

import argparse
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

from kbench import cluster, errors, reporting

# Seconds that the others get to end by themselves, and after SIGTERM.
_PATIENCE_SECS = 60.0
_TERM_SECS = 15.0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog='kbench launch',
        description='Run a whole cluster on this machine: every role is a '
        'process on 127.0.0.1 with a free port.',
    )
    parser.add_argument('--workers', type=int, default=1, metavar='N')
    parser.add_argument('--ps', type=int, default=0, metavar='N')
    parser.add_argument(
        '--controller',
        action='store_true',
        help='coordinate from a process of its own, not from worker 0',
    )
    parser.add_argument('flags', nargs='*', help='flags of the run, after a --')
    return parser


def free_addresses(count: int) -> list[str]:
    """So many different host:port of this machine that nobody listens at."""
    return [f'127.0.0.1:{port}' for port in cluster.free_ports(count)]


def role_commands(
    workers: int, ps: int, controller: bool, flags: Sequence[str]
) -> dict[str, list[str]]:
    """The command line of every role by its name, the chief's first."""
    addresses = free_addresses(workers + ps + controller)
    hosts = [f'--worker_hosts={",".join(addresses[:workers])}']
    if ps:
        hosts.append(f'--ps_hosts={",".join(addresses[workers:][:ps])}')
    if controller:
        hosts.append(f'--controller_host={addresses[-1]}')
    roles = [('controller', 0)] if controller else []
    roles += [('worker', index) for index in range(workers)]
    roles += [('ps', index) for index in range(ps)]
    return {
        f'{job} {index}': [
            *(sys.executable, '-m', 'kbench', *flags),
            *(f'--job_name={job}', f'--task_index={index}', *hosts),
        ]
        for job, index in roles
    }


class _Roles:
    """The processes of a launch and their lines."""

    def __init__(self, commands: dict[str, list[str]]):
        # Their own session: Ctrl-C reaches them through this process alone.
        self._lock = threading.Lock()
        self._threads = []
        environ = {**os.environ, 'PYTHONUNBUFFERED': '1'}
        environ.pop('TF_CONFIG', None)
        self.processes = {}
        for name, command in commands.items():
            process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                stdin=subprocess.DEVNULL,
                text=True,
                errors='replace',
                env=environ,
                start_new_session=True,
            )
            self.processes[name] = process
            for stream, write in (
                (process.stdout, reporting.out),
                (process.stderr, reporting.to_standard_error),
            ):
                thread = threading.Thread(
                    target=self._pump, args=(name, stream, write), daemon=True
                )
                thread.start()
                self._threads.append(thread)

    def _pump(self, name, stream, write):
        for line in stream:
            with self._lock:
                write(f'[{name}] {line.rstrip()}')

    def statuses(self) -> dict[str, int]:
        """Exit status of the roles that have ended, by name."""
        found = {n: p.poll() for n, p in self.processes.items()}
        return {n: status for n, status in found.items() if status is not None}

    def signal(self, number: int, chief_only: bool = False) -> None:
        """Sends a signal to the roles that still run, or to the first one."""
        processes = list(self.processes.values())
        for process in processes[:1] if chief_only else processes:
            if process.poll() is None:
                process.send_signal(number)

    def wait(self, timeout_secs: float) -> bool:
        """Whether all ended in time."""
        end = time.monotonic() + timeout_secs
        while len(self.statuses()) < len(self.processes):
            if time.monotonic() > end:
                return False
            time.sleep(0.1)
        return True

    def end(self) -> None:
        """Ends what still runs, each process by its own id."""
        self.signal(signal.SIGTERM)
        if not self.wait(_TERM_SECS):
            self.signal(signal.SIGKILL)
            self.wait(_TERM_SECS)
        for thread in self._threads:
            thread.join(2)


def _watch(roles: _Roles) -> int:
    """Waits for all; the first failure ends the others."""
    while True:
        statuses = roles.statuses()
        failed = {name: s for name, s in statuses.items() if s != 0}
        if failed:
            name, status = next(iter(failed.items()))
            reporting.notice(
                f'{name} ended with status {status}: ending the others'
            )
            # They may have something to say about it themselves.
            roles.wait(5)
            return status if status > 0 else 128 - status
        if len(statuses) == len(roles.processes):
            return 0
        time.sleep(0.1)


def main(arguments: Sequence[str]) -> int:
    """Runs the command; returns the one exit status of the cluster."""
    options = _parser().parse_args(list(arguments))
    if options.workers < 1 or options.ps < 0:
        raise errors.UserError(
            f'--workers={options.workers} --ps={options.ps}: legal are 1 '
            'worker or more, and 0 parameter servers or more'
        )
    roles = _Roles(
        role_commands(
            options.workers, options.ps, options.controller, options.flags
        )
    )

    def on_term(*_):
        raise SystemExit(143)

    before = signal.signal(signal.SIGTERM, on_term)
    try:
        return _watch(roles)
    # The chief saves, for which it needs the others, and then ends them.
    except KeyboardInterrupt:
        roles.signal(signal.SIGINT, chief_only=True)
        roles.wait(_TERM_SECS)
        return 130
    except SystemExit as ended:
        roles.signal(signal.SIGTERM, chief_only=True)
        roles.wait(_PATIENCE_SECS)
        return ended.code
    finally:
        roles.end()
        signal.signal(signal.SIGTERM, before)
