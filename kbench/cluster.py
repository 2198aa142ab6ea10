"""Who takes part in a job: host flags, TF_CONFIG and Slurm as one value.

Nothing here needs TensorFlow, but for Slurm, whose variables its resolver
reads: what is wrong with a cluster is said before the seconds that importing
it takes.
"""

import collections
import contextlib
import dataclasses
import json
import os
import random
import shutil
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from kbench import errors

CHIEF, WORKER, PS, EVALUATOR = 'chief', 'worker', 'ps', 'evaluator'
# How TF_CONFIG and the host flags may call the roles.
_ROLES = {
    'chief': CHIEF,
    'master': CHIEF,
    'controller': CHIEF,
    'worker': WORKER,
    'ps': PS,
    'evaluator': EVALUATOR,
}
# Seconds in which all names must be resolved.
_RESOLVE_SECS = 8


class ClusterError(errors.UserError):
    """A cluster that cannot be; its text is one line."""


@dataclasses.dataclass(frozen=True)
class Cluster:
    """A job of several processes, as one of them sees it.

    Attributes:
        chief: addresses, host:port, of the coordinator: one or none.
        worker: addresses of the workers.
        ps: addresses of the parameter servers.
        job: role of this process: chief, worker, ps or evaluator.
        index: its number within the role.
    """

    chief: tuple[str, ...]
    worker: tuple[str, ...]
    ps: tuple[str, ...]
    job: str
    index: int

    @property
    def coordinates(self) -> bool:
        """Whether this process leads the job: the chief, else worker 0."""
        if self.chief:
            return self.job == CHIEF
        return (self.job, self.index) == (WORKER, 0)

    @property
    def name(self) -> str:
        """This process, for messages: `worker 1`."""
        return f'{self.job} {self.index}'

    @property
    def address(self) -> str | None:
        """host:port of this process; None: nobody connects to it."""
        return dict(self.tasks()).get(self.name)

    def tasks(self) -> list[tuple[str, str]]:
        """Name and address of every process that has an address."""
        return [
            (f'{job} {index}', address)
            for job in (CHIEF, PS, WORKER)
            for index, address in enumerate(getattr(self, job))
        ]

    def spec(self) -> dict[str, list[str]]:
        """Addresses by role, as TensorFlow takes them."""
        return {
            job: list(getattr(self, job))
            for job in (CHIEF, WORKER, PS)
            if getattr(self, job)
        }

    def as_peers(self) -> 'Cluster':
        """The same job where every chief and worker computes alike.

        A chief is the first worker then, as TensorFlow has it.
        """
        if not self.chief:
            return dataclasses.replace(self, ps=())
        shift = {CHIEF: 0, WORKER: len(self.chief)}
        compute = self.job in shift
        return Cluster(
            chief=(),
            worker=self.chief + self.worker,
            ps=(),
            job=WORKER if compute else self.job,
            index=self.index + shift.get(self.job, 0),
        )

    def coordinator_address(self) -> str:
        """host:port where the others find what the coordinator computed.

        That of the chief; else a free port on the host of worker 0.
        """
        if self.chief:
            return self.chief[0]
        host = self.worker[0].rpartition(':')[0]
        return f'{host}:{free_ports(1)[0]}'

    def describe(self) -> str:
        """Role, address and peers of this process in one line."""
        address = f' at {self.address}' if self.address else ''
        peers = ', '.join(
            f'{name} at {where}'
            for name, where in self.tasks()
            if name != self.name
        )
        return f'{self.name}{address}; peers: {peers or "none"}'


def _check_address(address: Any, where: str) -> str:
    host, _, port = str(address).rpartition(':')
    if not isinstance(address, str) or not (
        host and port.isdigit() and 0 < int(port) < 65536
    ):
        raise ClusterError(
            f'{where} names {address!r}: an address is host:port, with a '
            'port from 1 to 65535'
        )
    return address


def _create(
    jobs: Mapping[str, Sequence[str]], job: str, index: int, where: str
) -> Cluster:
    """Makes a checked cluster from addresses by role."""
    known = {CHIEF: (), WORKER: (), PS: (), EVALUATOR: ()} | {
        role: tuple(_check_address(one, where) for one in addresses)
        for role, addresses in jobs.items()
    }
    everyone = [one for addresses in known.values() for one in addresses]
    for address, count in collections.Counter(everyone).items():
        if count > 1:
            raise ClusterError(
                f'{where} gives {address} to {count} processes: each needs '
                'an address of its own'
            )
    if len(known[CHIEF]) > 1:
        raise ClusterError(
            f'{where} names {len(known[CHIEF])} chiefs: a job has one or none'
        )
    # An evaluator watches the job: it need not be listed.
    count = len(known[job]) or (job == EVALUATOR)
    if not 0 <= index < count:
        legal = f'from 0 to {count - 1}' if count else 'none: the list is empty'
        raise ClusterError(
            f'{where} says that this is {job} {index}, but the legal indices '
            f'of {job} are {legal}'
        )
    return Cluster(known[CHIEF], known[WORKER], known[PS], job, index)


def from_tf_config(text: str) -> Cluster | None:
    """Reads the environment variable TF_CONFIG.

    Returns:
        The cluster; None where the variable names none.

    Raises:
        ClusterError: bad JSON, unknown roles, an index out of range.
    """
    where = 'TF_CONFIG'
    try:
        config = json.loads(text)
    except ValueError as error:
        raise ClusterError(f'{where} is not JSON: {error}') from None
    if not isinstance(config, dict):
        raise ClusterError(f'{where} must be a JSON object')
    jobs = config.get('cluster') or {}
    task = config.get('task') or {}
    if not isinstance(jobs, dict) or not isinstance(task, dict):
        raise ClusterError(f'{where}: cluster and task must be JSON objects')
    if not jobs:
        return None
    known = {}
    for name, addresses in jobs.items():
        role = _role(name, where)
        if not isinstance(addresses, list):
            raise ClusterError(
                f'{where}: {name} must be a list of host:port, not '
                f'{addresses!r}'
            )
        if role in known:
            raise ClusterError(f'{where} names both a chief and a master')
        known[role] = addresses
    index = task.get('index', 0)
    if isinstance(index, str) and index.isdigit():
        index = int(index)
    if type(index) is not int:
        raise ClusterError(
            f'{where}: the index must be a number, not {index!r}'
        )
    return _create(known, _role(task.get('type'), where), index, where)


def _role(name: Any, where: str) -> str:
    if not isinstance(name, str) or name not in _ROLES:
        raise ClusterError(
            f'{where} names the role {name!r}: legal are '
            'chief, master, ps, worker and evaluator'
        )
    return _ROLES[name]


def from_hosts(
    *,
    job_name: str,
    ps_hosts: str,
    worker_hosts: str,
    controller_host: str | None,
    task_index: int,
) -> Cluster | None:
    """Reads the host flags of tf_cnn_benchmarks.

    Returns:
        The cluster; None where no flag is set.

    Raises:
        ClusterError: flags that contradict each other.
    """
    jobs = {
        CHIEF: [controller_host] if controller_host else [],
        WORKER: [one.strip() for one in worker_hosts.split(',') if one],
        PS: [one.strip() for one in ps_hosts.split(',') if one],
    }
    if not any(jobs.values()):
        if job_name or task_index:
            flag = f'--job_name={job_name}' if job_name else '--task_index'
            raise ClusterError(f'{flag} needs --worker_hosts')
        return None
    if not job_name:
        raise ClusterError(
            '--worker_hosts, --ps_hosts and --controller_host need '
            '--job_name: worker, ps or controller'
        )
    if not jobs[WORKER]:
        raise ClusterError('--job_name needs --worker_hosts')
    return _create(jobs, _ROLES[job_name], task_index, 'the host flags')


def from_slurm(num_ps: int) -> Cluster:
    """Reads Slurm's variables through TensorFlow's resolver.

    The first tasks of the step are parameter servers, the others workers.

    Args:
        num_ps: how many parameter servers.

    Raises:
        ClusterError: this is no step of Slurm, or it has too few tasks.
    """
    import tensorflow as tf

    try:
        num_tasks = int(os.environ['SLURM_STEP_NUM_TASKS'])
        if num_tasks <= num_ps:
            raise ClusterError(
                f'--slurm_ps={num_ps} leaves no worker: the step has '
                f'{num_tasks} tasks'
            )
        jobs = {PS: num_ps} if num_ps else {}
        # The resolver asks this program how many GPUs a node has.
        has_gpus = shutil.which('nvidia-smi') is not None
        # The resolver divides by the number of GPUs of a task.
        without = {'gpus_per_node': num_tasks, 'gpus_per_task': 1}
        resolver = tf.distribute.cluster_resolver.SlurmClusterResolver(
            jobs=jobs | {WORKER: num_tasks - num_ps},
            auto_set_gpu=has_gpus,
            **({} if has_gpus else without),
        )
        spec = resolver.cluster_spec().as_dict()
        job, index = resolver.get_task_info()
    except (KeyError, RuntimeError, ValueError, OSError) as error:
        if isinstance(error, ClusterError):
            raise
        raise ClusterError(
            f'--cluster=slurm: the variables of a job step are missing or '
            f'wrong ({error}): start with srun'
        ) from None
    return _create(spec, job, index, '--cluster=slurm')


def agree(
    from_environment: Cluster | None, from_flags: Cluster | None
) -> Cluster | None:
    """The one cluster that TF_CONFIG and the flags describe.

    Raises:
        ClusterError: they contradict each other.
    """
    if None not in (from_environment, from_flags):
        for field in dataclasses.fields(Cluster):
            one, other = (
                getattr(cluster, field.name)
                for cluster in (from_environment, from_flags)
            )
            if one != other:
                raise ClusterError(
                    f'TF_CONFIG and the host flags contradict each other: '
                    f'{field.name} is {_shown(one)} there and '
                    f'{_shown(other)} here'
                )
    return from_environment or from_flags


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return ','.join(value) or 'empty'
    return str(value)


# Below what outgoing connections get: none of them takes a port meanwhile.
_PORTS = range(12000, 32000)


def free_ports(count: int) -> list[int]:
    """So many different ports of this machine that nobody listens at."""
    with contextlib.ExitStack() as stack:
        ports = []
        for port in random.SystemRandom().sample(_PORTS, len(_PORTS)):
            with contextlib.suppress(OSError):
                stack.enter_context(socket.create_server(('', port)))
                ports.append(port)
            if len(ports) == count:
                return ports
    raise ClusterError(f'this machine has no {count} free ports')


def check_names(cluster: Cluster) -> None:
    """Checks that every host has an address, all at the same time.

    Raises:
        ClusterError: naming the hosts that cannot be resolved.
    """
    hosts = {
        address.rpartition(':')[0].strip('[]'): (name, address)
        for name, address in cluster.tasks()
    }
    known = set()

    def resolve(host):
        with contextlib.suppress(OSError, UnicodeError):
            socket.getaddrinfo(host, None)
            known.add(host)

    # Daemons: a name server that is silent must not keep the process.
    threads = [
        threading.Thread(target=resolve, args=(host,), daemon=True)
        for host in hosts
    ]
    end = time.monotonic() + _RESOLVE_SECS
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    failed = sorted(hosts[host] for host in hosts.keys() - known)
    if failed:
        listed = ', '.join(f'{address} ({name})' for name, address in failed)
        raise ClusterError(f'these hosts have no known address: {listed}')


def check_own_port(cluster: Cluster) -> None:
    """Checks that this process can listen where the others look for it.

    Raises:
        ClusterError: the port is in use.
    """
    if cluster.address is None:
        return
    host, _, port = cluster.address.rpartition(':')
    family = socket.getaddrinfo(host.strip('[]'), int(port))[0][0]
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # What an ended process left behind does not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(('', int(port)))
        except OSError as error:
            raise ClusterError(
                f'{cluster.name} cannot listen at {cluster.address}: '
                f'{error.strerror}'
            ) from None
