"""Starts clusters with 20 s between the first process and the others.

    python benchmarks/start_order.py

Once with the chief first and once with it last, in two modes, all at the same
time. Prints the exit status of every process and for whom it waited.
"""

import subprocess
import sys
import time

from kbench.commands import launch

_APART_SECS = 20
_FLAGS = (
    '--model=trivial',
    '--data_name=cifar10',
    '--device=cpu',
    '--batch_size=2',
    '--num_batches=5',
)


def _start(command):
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def main():
    jobs = []
    for mode, ps in (('parameter_server', 1), ('distributed_all_reduce', 0)):
        for order in (1, -1):
            flags = [*_FLAGS, f'--variable_update={mode}']
            commands = launch.role_commands(2, ps, False, flags)
            first, *others = list(commands.items())[::order]
            jobs.append((mode, {first[0]: _start(first[1])}, others))
    time.sleep(_APART_SECS)
    for _, processes, others in jobs:
        processes |= {name: _start(command) for name, command in others}
    for mode, processes, _ in jobs:
        for name, process in processes.items():
            text = process.communicate()[1]
            waits = [line for line in text.splitlines() if 'waiting' in line]
            sys.stdout.write(
                f'{mode}\t{name}\tstatus {process.returncode}\t{waits[:1]}\n'
            )


if __name__ == '__main__':
    main()
