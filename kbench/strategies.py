"""How the variables are distributed: modes become strategies.

The only module that knows the names of the modes. `create` returns one
object, `Replicas`, that hides from the loop where variables live and how
gradients meet.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

Tensors = list[tf.Tensor]
Update = Callable[[Tensors, Tensors, Tensors], Any]

_SUM = tf.distribute.ReduceOp.SUM


class Replicas:
    """The replicas of one process and what joins them.

    Args:
        strategy: a tf.distribute strategy.
        devices: one device name per replica.

    Attributes:
        strategy: the strategy, for its scope.
        devices: one device name per replica.
        num_replicas: how many there are.
        share_gradients: whether gradients travel between them.
    """

    def __init__(
        self, strategy: tf.distribute.Strategy, devices: Sequence[str]
    ):
        self.strategy = strategy
        self.devices = list(devices)
        self.num_replicas = strategy.num_replicas_in_sync
        self.share_gradients = self.num_replicas > 1

    def run(self, function: Callable, args: tuple = ()) -> Any:
        """Runs the function once per replica, inside a tf.function."""
        return self.strategy.run(function, args=args)

    def first(self, per_replica: Any) -> Any:
        """The value of the first replica."""
        return self.strategy.experimental_local_results(per_replica)[0]

    def sum(self, per_replica: tf.Tensor) -> tf.Tensor:
        """The sum over all replicas, outside of a replica context."""
        return self.strategy.reduce(_SUM, per_replica, axis=None)

    def distribute(
        self, make_dataset: Callable[[], tf.data.Dataset]
    ) -> Iterator:
        """Iterates over one element of the data set per replica and step.

        Args:
            make_dataset: makes a data set of per-replica batches; replica r
                of R gets element step * R + r.
        """
        options = tf.distribute.InputOptions(
            experimental_fetch_to_device=self.num_replicas > 1
            or _on_gpu(self.devices),
        )
        return iter(
            self.strategy.distribute_datasets_from_function(
                lambda _: make_dataset(), options
            )
        )

    def constant(self, make_value: Callable[[int], Any]) -> Any:
        """A value per replica, on its device, made once.

        Args:
            make_value: number of the replica to a nest of tensors.
        """

        def value(context):
            index = context.replica_id_in_sync_group
            with tf.device(self.devices[index]):
                return tf.nest.map_structure(tf.identity, make_value(index))

        return self.strategy.experimental_distribute_values_from_function(value)

    def _mean(self, tensors: Tensors) -> Tensors:
        """Means over the replicas, in a replica context."""
        if self.num_replicas == 1:
            return tensors
        context = tf.distribute.get_replica_context()
        means = list(tensors)
        # A reduction packs its tensors into one: they must be of one type.
        for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
            places = [
                i for i, tensor in enumerate(tensors) if tensor.dtype == dtype
            ]
            sums = context.all_reduce(_SUM, [tensors[i] for i in places])
            for i, mean in zip(
                places, _scaled(sums, 1 / self.num_replicas), strict=True
            ):
                means[i] = mean
        return means

    def meet(
        self,
        update: Update,
        gradients: Tensors,
        measured: Tensors,
        states: Tensors,
    ) -> Any:
        """Joins the replicas and updates each copy of the variables once.

        Call it in a replica context. `update(gradients, measured, states)`
        runs where the variables are one copy's own: `variable.handle` is
        legal there.

        Args:
            update: gets the means over all replicas, and the states of the
                copy's own replica, or of the first one for a shared copy.
            gradients: of this replica.
            measured: scalars of this replica.
            states: new values of this replica that are not averaged.

        Returns:
            What `update` returns.
        """
        means = self._mean([*gradients, *measured])
        count = len(gradients)
        return update(means[:count], means[count:], states)


def _on_gpu(devices):
    return 'gpu' in devices[0].lower()


def _scaled(tensors, factor):
    return [value * tf.cast(factor, value.dtype) for value in tensors]


class SharedReplicas(Replicas):
    """Replicas that share one copy of the variables on one device."""

    def __init__(self, strategy, devices, parameter_device: str):
        super().__init__(strategy, devices)
        self._parameter_device = parameter_device

    def meet(self, update, gradients, measured, states):
        """Averages on the device of the variables and updates there, once."""
        if self.num_replicas == 1:
            with tf.device(self._parameter_device):
                return update(gradients, measured, states)

        def merge(strategy, gradients, measured, states):
            sums = strategy.extended.batch_reduce_to(
                _SUM,
                [
                    (value, self._parameter_device)
                    for value in [*gradients, *measured]
                ],
            )
            count = len(gradients)
            with tf.device(self._parameter_device):
                means = _scaled(
                    [self.first(value) for value in sums],
                    1 / self.num_replicas,
                )
                return update(
                    means[:count],
                    means[count:],
                    [self.first(value) for value in states],
                )

        context = tf.distribute.get_replica_context()
        return context.merge_call(merge, args=(gradients, measured, states))


class IndependentReplicas(Replicas):
    """Replicas that never see each other's gradients."""

    def __init__(self, strategy, devices):
        super().__init__(strategy, devices)
        self.share_gradients = False

    def meet(self, update, gradients, measured, states):
        """Updates each copy with its own gradients; metrics are means."""
        return update(gradients, self._mean(measured), states)


def _create_shared(devices, parameter_device):
    strategy = tf.distribute.experimental.CentralStorageStrategy(
        compute_devices=devices, parameter_device=parameter_device
    )
    return SharedReplicas(strategy, devices, parameter_device)


def _cross_device_ops(devices):
    if _on_gpu(devices) and len(devices) > 1:
        return tf.distribute.NcclAllReduce()
    return tf.distribute.ReductionToOneDevice()


def _create_replicated(devices, parameter_device, kind=Replicas):
    del parameter_device
    strategy = tf.distribute.MirroredStrategy(
        devices, cross_device_ops=_cross_device_ops(devices)
    )
    return kind(strategy, devices)


def _create_independent(devices, parameter_device):
    return _create_replicated(devices, parameter_device, IndependentReplicas)


_MODES = {
    'parameter_server': _create_shared,
    'replicated': _create_replicated,
    'independent': _create_independent,
}


def create(
    variable_update: str, *, devices: Sequence[str], parameter_device: str
) -> Replicas:
    """Creates the replicas of a mode.

    Args:
        variable_update: name of the mode.
        devices: one device name per replica, such as `/cpu:0`.
        parameter_device: where shared variables live.

    Raises:
        KeyError: a mode that needs a cluster.
    """
    return _MODES[variable_update](list(devices), parameter_device)
