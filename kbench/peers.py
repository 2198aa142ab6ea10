"""Replicas of several processes that are all alike, joined by all-reduce."""

import contextlib
import logging
import re
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import collective_all_reduce_strategy
from tensorflow.python.eager import context

from kbench import cluster as cluster_lib
from kbench import control, errors, replicas

_SUM = tf.distribute.ReduceOp.SUM
# Seconds that the chief waits at the end for the others to be gone.
_LEAVE_SECS = 20.0

_log = logging.getLogger('kbench')


class LostWorker(errors.UserError):
    """An all-reduce failed because a process is lost; one line."""


@contextlib.contextmanager
def _local_devices(count: int, kind: str) -> Iterator[None]:
    """Lets the strategy find these devices in this process.

    It lists all GPUs of the process, else one CPU: several logical CPU
    devices need this override of its listing, held by a test.
    """
    extended = collective_all_reduce_strategy.CollectiveAllReduceExtended
    original = extended._initialize_local_devices

    def listing(self, resolver, worker_device):
        del self, resolver
        return (
            tuple(f'{worker_device}/device:{kind}:{i}' for i in range(count)),
            kind,
        )

    extended._initialize_local_devices = listing
    try:
        yield
    finally:
        extended._initialize_local_devices = original


def create_strategy(
    cluster: cluster_lib.Cluster,
    devices: Sequence[str],
    options: tf.distribute.experimental.CommunicationOptions,
) -> tf.distribute.MultiWorkerMirroredStrategy:
    """Creates the strategy; returns when all processes have met.

    Args:
        cluster: workers only.
        devices: of this process, such as `/gpu:0`.
        options: how gradients travel.
    """
    on_gpu = 'gpu' in devices[0].lower()
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(cluster.spec()),
        task_type=cluster.job,
        task_id=cluster.index,
        rpc_layer='grpc',
    )
    with _local_devices(len(devices), 'GPU' if on_gpu else 'CPU'):
        return tf.distribute.MultiWorkerMirroredStrategy(
            cluster_resolver=resolver, communication_options=options
        )


class PeerReplicas(replicas.Replicas):
    """Replicas of a MultiWorkerMirroredStrategy.

    Args:
        strategy: from `create_strategy`.
        devices: of this process.
        cluster: workers only.
        timeout_secs: of one all-reduce.
    """

    def __init__(
        self,
        strategy: tf.distribute.MultiWorkerMirroredStrategy,
        devices: Sequence[str],
        cluster: cluster_lib.Cluster,
        timeout_secs: float,
    ):
        super().__init__(strategy, devices)
        self.timeout_secs = timeout_secs
        self._cluster = cluster
        self.num_workers = len(cluster.worker)
        self.worker = cluster.index
        # Whether this process wants to stop; the mean travels with the loss.
        self._wants_stop = tf.Variable(0.0, trainable=False)

    def make_step(self, read, work, update, like, gradient_dtype):
        """As everywhere; the vector ends with how many want to stop."""

        def work_and_tell(values, batch, replica):
            gradients, measured, states = work(values, batch, replica)
            # A read has no device, and an all-reduce asks for one.
            wish = tf.identity(self._wants_stop)
            return gradients, [*measured, wish], states

        def update_and_tell(gradients, measured, states):
            *measured, stopping = measured
            vector = update(gradients, measured, states)
            return tf.concat([vector, [stopping]], axis=0)

        step = super().make_step(
            read, work_and_tell, update_and_tell, like, gradient_dtype
        )

        def checked(batch):
            with self.named_failures():
                return step(batch)

        checked.__wrapped__ = step
        return checked

    def stop_wanted(self, wanted: bool, vector: Any) -> bool:
        """The same answer in every process: they stop after one step."""
        if wanted:
            self._wants_stop.assign(1.0)
        return bool(vector[-1] > 0)

    @contextlib.contextmanager
    def named_failures(self) -> Iterator[None]:
        """Turns TensorFlow's errors about lost peers into one line.

        Raises:
            LostWorker: naming the process.
        """
        try:
            yield
        except tf.errors.OpError as error:
            raise self._explain(error) from None

    def _explain(self, error):
        text = ' '.join(error.message.split())
        lost = {
            int(index)
            for index in re.findall(r'/job:worker/replica:0/task:(\d+)', text)
        } - {self.worker}
        missing = [
            (name, address)
            for name, address in self._cluster.tasks()
            if name != self._cluster.name and not control.listens(address)
        ]
        if not missing:
            missing = [
                task
                for index, task in enumerate(self._cluster.tasks())
                if index in lost
            ]
        names = ', '.join(f'{name} at {where}' for name, where in missing)
        who = names or 'a worker'
        # What follows is where in the program it was noticed.
        reason = text.rpartition(') ')[2] or text
        return LostWorker(
            f'{who} is lost: an all-reduce failed ({reason[:200]}); a run '
            'with the same --train_dir resumes from its last checkpoint'
        )

    def check_same(self, value, what):
        """Compares a number over all workers.

        Raises:
            UserError: it differs.
        """
        with self.named_failures():
            count = self.num_replicas
            constant = tf.constant(value, tf.float64)

            @tf.function(autograph=False)
            def moments():
                def both():
                    context = tf.distribute.get_replica_context()
                    return context.all_reduce(
                        _SUM, tf.stack([constant, constant * constant])
                    )

                return self.first(self.run(both))

            total, squares = moments().numpy()
        if squares * count - total * total > 0.5:
            raise errors.UserError(
                f'{what} differs between the workers: here it is {value}; '
                'all of them need the same --train_dir on shared storage'
            )

    def finish(self) -> None:
        """Meets the others a last time; the chief leaves as the last."""
        self.check_same(0, 'the end')
        # A process that has its sum is still asked for it by another one.
        with contextlib.suppress(tf.errors.OpError):
            context.context().wait_at_barrier(
                'kbench_end', int(1000 * _LEAVE_SECS)
            )
        if self.worker == 0:
            others = self._cluster.tasks()[1:]
            control.wait_until_gone(others, _LEAVE_SECS)


def communication_options(
    implementation: str,
    bytes_per_pack: int,
    timeout_secs: float,
) -> tf.distribute.experimental.CommunicationOptions:
    """How gradients travel between processes.

    Args:
        implementation: AUTO, RING or NCCL.
        bytes_per_pack: 0 sends all at once.
        timeout_secs: of one all-reduce.
    """
    kinds = tf.distribute.experimental.CommunicationImplementation
    return tf.distribute.experimental.CommunicationOptions(
        bytes_per_pack=bytes_per_pack,
        timeout_seconds=timeout_secs,
        implementation=kinds[implementation],
    )
