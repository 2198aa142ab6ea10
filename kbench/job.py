"""The part of this process in a job of several: found, checked, played."""

import contextlib
import dataclasses
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from kbench import cluster as cluster_lib
from kbench import errors, reporting, runtime, serve
from kbench import params as params_lib
from kbench.params import table

LOCAL, SERVERS, PEERS = 'local', 'servers', 'peers'

_log = logging.getLogger('kbench')


@dataclasses.dataclass
class Job:
    """The part of this process.

    Attributes:
        cluster: the job, None for one process.
        topology: local, servers or peers.
        status: exit status of a process that has no more to do, else None.
    """

    cluster: cluster_lib.Cluster | None = None
    topology: str = LOCAL
    status: int | None = None


def _read(
    params: params_lib.Params, environ: Mapping[str, str]
) -> cluster_lib.Cluster | None:
    if params.cluster:
        runtime.import_tensorflow(params_lib.environment(params))
        return cluster_lib.from_slurm(params.slurm_ps)
    text = environ.get('TF_CONFIG', '')
    return cluster_lib.agree(
        cluster_lib.from_tf_config(text) if text else None,
        cluster_lib.from_hosts(
            job_name=params.job_name,
            ps_hosts=params.ps_hosts,
            worker_hosts=params.worker_hosts,
            controller_host=params.controller_host,
            task_index=params.task_index,
        ),
    )


def _check_settings(params: params_lib.Params, topology: str) -> None:
    """Refuses what only another topology has."""
    mode = f'--variable_update={params.variable_update}'
    on_servers = topology == SERVERS
    servers, alone = 'needs parameter servers', 'runs without a cluster'
    asynchronous = not params.cross_replica_sync
    for flag, is_set, legal, needs in (
        ('--cross_replica_sync=False', asynchronous, on_servers, servers),
        ('--staged_vars', params.staged_vars, on_servers, servers),
        ('--ps_shard_bytes', params.ps_shard_bytes, on_servers, servers),
        ('--graph_file', params.graph_file, not on_servers, alone),
    ):
        if is_set and not legal:
            raise cluster_lib.ClusterError(f'{flag} {needs}; here is {mode}')


def _topology(
    params: params_lib.Params, cluster: cluster_lib.Cluster | None
) -> str:
    """What the mode and the cluster make together."""
    mode = f'--variable_update={params.variable_update}'
    possible = table.TOPOLOGIES[params.variable_update]
    computing = len(cluster.chief + cluster.worker) if cluster else 1
    if cluster is not None and cluster.ps and SERVERS in possible:
        return SERVERS
    if computing == 1 and LOCAL in possible:
        return LOCAL
    if PEERS in possible:
        return PEERS
    if SERVERS in possible:
        raise cluster_lib.ClusterError(
            f'{mode} needs parameter servers: --ps_hosts, or ps in TF_CONFIG'
        )
    several = [
        name for name, kinds in table.TOPOLOGIES.items() if kinds != (LOCAL,)
    ]
    raise cluster_lib.ClusterError(
        f'{mode} runs in one process, but the cluster has {computing}: legal '
        f'there are {", ".join(several)}'
    )


def _evaluating(cluster: cluster_lib.Cluster | None) -> Job:
    """One process evaluates, whatever the mode: what is saved is whole."""
    if cluster is None:
        return Job()
    if cluster.coordinates or cluster.job == cluster_lib.EVALUATOR:
        _log.info('%s evaluates, in one process', cluster.name)
        return Job()
    _log.info('%s: --eval does not need it', cluster.name)
    return Job(status=0)


def find(
    params: params_lib.Params, environ: Mapping[str, str] = os.environ
) -> Job:
    """Finds the part of this process, and checks it before expensive work.

    Raises:
        ClusterError: what is wrong, in one line.
    """
    cluster = _read(params, environ)
    if params.eval:
        return _evaluating(cluster)
    topology = _topology(params, cluster)
    if cluster is not None and cluster.job == cluster_lib.EVALUATOR:
        _log.info('evaluator: not part of the training')
        return Job(None, LOCAL, 0)
    _check_settings(params, topology)
    if cluster is None:
        return Job()
    needed = cluster
    if topology == PEERS:
        if params.controller_host:
            needed = dataclasses.replace(cluster, chief=())
        needed = needed.as_peers()
    roles = needed.spec()
    if topology == LOCAL:
        roles = {cluster_lib.CHIEF, cluster_lib.WORKER}
    if needed.job not in roles:
        _log.info(
            '%s: --variable_update=%s does not need it',
            cluster.name,
            params.variable_update,
        )
        return Job(None, topology, 0)
    if topology == LOCAL:
        _log.info('%s is alone: running in one process', cluster.name)
        return Job()
    cluster_lib.check_names(needed)
    cluster_lib.check_own_port(needed)
    _log.info('%s', needed.describe())
    return Job(needed, topology)


def _serve_settings(params: params_lib.Params) -> dict[str, Any]:
    return {
        'num_devices': params.num_gpus,
        'kind': params.device,
        'gpus': params.gpu_indices,
        'timeout_secs': params.cluster_timeout_secs,
    }


def play(job: Job, params: params_lib.Params, run: Callable[..., Any]) -> Any:
    """Does what this process has to do in the job.

    Args:
        job: from `find`.
        params: of the run.
        run: trains; takes the job and what ends it in the other processes.

    Returns:
        What `run` returns; None where this process only serves.
    """
    if job.status is not None:
        return None
    if job.topology == LOCAL:
        return run(job, lambda: None)
    serve.joined = True
    runtime.silence_native_code()
    if job.topology == PEERS:
        return _as_peer(job, params, run)
    if job.cluster.coordinates:
        return _coordinate(job, params, run)
    serve.serve(job.cluster, **_serve_settings(params))
    return None


def _as_peer(job, params, run):
    from kbench import control

    others = [t for t in job.cluster.tasks() if t[0] != job.cluster.name]
    watch = control.StartWatch(others, params.cluster_timeout_secs)

    def met():
        watch.end()
        runtime.catch_sigterm()

    return run(job, met)


def last_checkpoint(params: params_lib.Params) -> str:
    """Where a run that is started again would go on, for messages."""
    from kbench import checkpoints

    path = checkpoints.latest(params.train_dir) if params.train_dir else None
    return f'the last checkpoint is {path or "none"}'


def _coordinate(job, params, run):
    tf = runtime.import_tensorflow(params_lib.environment(params))
    from kbench import control

    if not runtime.chatter_wanted():
        # What it says of lost workers is said here in a line of our own.
        tf.get_logger().setLevel('CRITICAL')

    cluster = job.cluster
    child = None
    if cluster.job == cluster_lib.WORKER:
        child = serve.Child(cluster, **_serve_settings(params))
    tasks = [t for t in cluster.tasks() if not t[0].startswith('chief')]
    control.wait_for(tasks, params.cluster_timeout_secs)

    def on_lost(name):
        if not name.startswith('ps'):
            _log.warning('%s does not answer: waiting for it', name)
            return
        text = f'{name} is lost; {last_checkpoint(params)}'
        reporting.error(text)
        monitor.end(control.FAILED + f'{name} is lost'.encode())
        serve.leave(1, text)

    monitor = control.Monitor(
        tasks,
        on_lost=on_lost,
        on_back=lambda name: _log.warning('%s answers again', name),
        on_preempted=lambda name: runtime.request_stop(f'{name} is preempted'),
    )
    word = control.DONE
    try:
        with _explained(params):
            return run(job, lambda: None)
    except BaseException as error:
        text = ' '.join(str(error).split()) or type(error).__name__
        word = control.FAILED + text.encode()
        raise
    finally:
        if child is not None:
            child.let_end()
        monitor.end(word)
        if child is not None:
            child.end()


@contextlib.contextmanager
def _explained(params: params_lib.Params) -> Iterator[None]:
    """Turns what TensorFlow says of a lost server into one line."""
    import tensorflow as tf

    try:
        yield
    except (tf.errors.UnavailableError, tf.errors.AbortedError) as error:
        text = ' '.join(error.message.split())
        place = text.partition('/job:ps/replica:0/task:')[2]
        digits = place.partition('/')[0].partition(' ')[0].rstrip('.:;,')
        who = f'ps {digits}' if digits.isdigit() else 'a parameter server'
        raise errors.UserError(
            f'{who} is lost ({text[:160]}); {last_checkpoint(params)}'
        ) from None
