"""How the variables are distributed: modes become strategies.

The only module that knows the names of the modes. `create` returns one
object, `Replicas`, that hides from the loop where variables live and how
gradients meet.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from kbench import cluster as cluster_lib
from kbench import collectives, copies, errors, peers, scheduled
from kbench.replicas import IndependentReplicas, Part, Replicas, SharedReplicas

__all__ = [
    'Part',
    'Replicas',
    'Settings',
    'create',
    'create_adder',
    'create_local',
]


@dataclasses.dataclass(frozen=True)
class Settings:
    """What the modes are made from; each takes what it needs.

    Attributes:
        devices: one device name per replica of a process, such as `/cpu:0`.
        parameter_device: where shared variables of one process live.
        cluster: the job, None for one process.
        synchronous: whether all workers' gradients make one update.
        staged: whether gradients are computed on weights one step old.
        ps_shard_bytes: variables above this size are divided; 0 divides none.
        workers_may_use_gpus: whether the workers of a coordinator compute on
            GPUs where they have some.
        all_reduce_spec: how gradients are added; None for what suits.
        bytes_per_pack: bytes that travel together between peers.
        collective_timeout_secs: of an all-reduce between peers.
    """

    devices: Sequence[str]
    parameter_device: str = '/cpu:0'
    cluster: cluster_lib.Cluster | None = None
    synchronous: bool = True
    staged: bool = False
    ps_shard_bytes: int = 0
    workers_may_use_gpus: bool = False
    all_reduce_spec: str | None = None
    bytes_per_pack: int = 0
    collective_timeout_secs: float = 300.0


def _create_shared(settings: Settings) -> Replicas:
    if settings.cluster is not None:
        return _create_scheduled(
            settings, copies.Copies(staged=settings.staged)
        )
    strategy = tf.distribute.experimental.CentralStorageStrategy(
        compute_devices=list(settings.devices),
        parameter_device=settings.parameter_device,
    )
    return SharedReplicas(strategy, settings.devices, settings.parameter_device)


def _create_replicated(settings: Settings, kind: type = Replicas) -> Replicas:
    devices = list(settings.devices)
    strategy = tf.distribute.MirroredStrategy(
        devices,
        cross_device_ops=collectives.create(settings.all_reduce_spec, devices),
    )
    return kind(strategy, devices)


def _create_independent(settings: Settings) -> Replicas:
    return _create_replicated(settings, IndependentReplicas)


def _devices_of_workers(devices):
    """GPUs where the workers have some; this process need not."""
    found = [
        device.name
        for device in tf.config.list_logical_devices('GPU')
        if '/job:worker/replica:0/task:0/' in device.name
    ]
    if not found:
        return devices
    if len(found) < len(devices):
        raise errors.UserError(
            f'--num_gpus={len(devices)}: worker 0 has {len(found)} GPUs'
        )
    return [f'/gpu:{index}' for index in range(len(devices))]


def _create_scheduled(settings: Settings, kept: copies.Copies) -> Replicas:
    cluster, devices = settings.cluster, list(settings.devices)
    # Without an address of the chief TensorFlow takes localhost for it, where
    # no other host finds it.
    chief = [cluster.coordinator_address()]
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(cluster.spec() | {cluster_lib.CHIEF: chief}),
        rpc_layer='grpc',
    )
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    if settings.workers_may_use_gpus:
        devices = _devices_of_workers(devices)
    return scheduled.ScheduledReplicas(
        strategy,
        devices,
        num_workers=len(cluster.worker),
        num_ps=len(cluster.ps),
        synchronous=settings.synchronous,
        copies=kept,
        ps_shard_bytes=settings.ps_shard_bytes,
    )


def _create_refreshed(settings: Settings) -> Replicas:
    # What is trained on a cluster is evaluated in one process.
    if settings.cluster is None:
        return _create_shared(settings)
    return _create_scheduled(settings, copies.Copies(refresh=True))


def _create_peers(settings: Settings) -> Replicas:
    cluster = settings.cluster
    if cluster is None:
        return _create_replicated(settings)
    on_gpu = 'gpu' in settings.devices[0].lower()
    options = peers.communication_options(
        collectives.implementation(settings.all_reduce_spec, on_gpu),
        settings.bytes_per_pack,
        settings.collective_timeout_secs,
    )
    strategy = peers.create_strategy(cluster, settings.devices, options)
    return peers.PeerReplicas(
        strategy,
        settings.devices,
        cluster,
        timeout_secs=settings.collective_timeout_secs,
    )


def create_adder(
    replicas: Replicas, spec: str, bytes_per_pack: int
) -> tuple[Replicas, Any, str]:
    """What adds tensors in another way over the devices of replicas.

    Args:
        replicas: whose devices.
        spec: all_reduce_spec.
        bytes_per_pack: between processes.

    Returns:
        Replicas, communication options for `all_reduce` or None, and the
        name of what adds.

    Raises:
        SpecError: the spec is not legal, or cannot run on these devices.
    """
    ranges = collectives.parse(spec)
    on_gpu = 'gpu' in replicas.devices[0].lower()
    if isinstance(replicas, peers.PeerReplicas):
        kind = collectives.implementation(spec, on_gpu)
        options = peers.communication_options(
            kind, bytes_per_pack, replicas.timeout_secs
        )
        return replicas, options, f'collective {kind}'
    settings = Settings(replicas.devices, all_reduce_spec=spec)
    names = [collectives.local_kind(one.algorithm, on_gpu) for one in ranges]
    return _create_replicated(settings), None, ', '.join(names)


def create_local() -> Replicas:
    """One replica on the CPU of this process, whatever job it is part of.

    Its variables may be anywhere: they are read where they are.
    """
    return Replicas(tf.distribute.get_strategy(), ['/cpu:0'])


_MODES = {
    'parameter_server': _create_shared,
    'replicated': _create_replicated,
    'independent': _create_independent,
    'distributed_replicated': _create_refreshed,
    'distributed_all_reduce': _create_peers,
    'collective_all_reduce': _create_peers,
}


def create(variable_update: str, **settings: Any) -> Replicas:
    """Creates the replicas of a mode.

    Args:
        variable_update: name of the mode.
        **settings: what it is made from, as `Settings` has it.
    """
    return _MODES[variable_update](Settings(**settings))
