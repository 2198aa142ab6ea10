"""Replicas of the model and how their gradients meet.

`Replicas` hides from the loop where variables live. The kinds here call
`strategy.run`; `kbench.scheduled` has the kind that schedules on a
coordinator.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

Tensors = list[tf.Tensor]
Update = Callable[[Tensors, Tensors, Tensors], Any]

_SUM = tf.distribute.ReduceOp.SUM


@dataclasses.dataclass(frozen=True)
class Part:
    """What one process reads of the data.

    Attributes:
        index: number of the process ...
        count: ... of so many.
        num_replicas: replicas of the process that divide the part.
        steps: steps of this run that the part is ahead at its start.
    """

    index: int = 0
    count: int = 1
    num_replicas: int = 1
    steps: int = 0


class Replicas:
    """The replicas of a job and what joins them.

    Args:
        strategy: a tf.distribute strategy.
        devices: one device name per replica of this process.

    Attributes:
        strategy: the strategy.
        devices: one device name per replica of this process.
        num_replicas: how many share an update, over all processes.
        num_workers: processes that compute.
        worker: number of this process among them.
        remote: whether other processes compute.
        share_gradients: whether gradients travel between replicas.
        lag: steps that are under way at a time, or None for what suits the
            devices.
    """

    num_workers = 1
    worker = 0
    remote = False
    lag: int | None = None

    def __init__(
        self, strategy: tf.distribute.Strategy, devices: Sequence[str]
    ):
        self.strategy = strategy
        self.devices = list(devices)
        self.num_replicas = strategy.num_replicas_in_sync
        self.share_gradients = self.num_replicas > 1

    @property
    def total_replicas(self) -> int:
        """All replicas of the job, also where each updates alone."""
        return self.num_workers * len(self.devices)

    @property
    def is_chief(self) -> bool:
        """Whether this process speaks and writes for the job."""
        return self.worker == 0

    def scope(self) -> contextlib.AbstractContextManager:
        """Where variables are to be created."""
        return self.strategy.scope()

    def check_same(self, value: int, what: str) -> None:
        """Raises UserError if the processes differ in a number."""

    def stop_wanted(self, wanted: bool, vector: Any) -> bool:
        """Whether the job stops after the step that returned a vector.

        Args:
            wanted: whether this process was asked to stop.
            vector: what the step returned.
        """
        del vector
        return wanted

    def settle(self) -> None:
        """Waits until no step is under way."""

    def finish(self) -> None:
        """Ends the job in every process, after all is written."""

    def make_step(
        self,
        read: Callable,
        work: Callable,
        update: Callable,
        like: tuple[Sequence, Sequence],
        gradient_dtype: tf.DType,
    ) -> Callable[[Any], tf.Tensor]:
        """Makes one step of training over all replicas.

        Args:
            read: () to a nest of tensors, the values of the variables.
            work: (values, batch, replica) to lists of gradients, measured
                scalars and states. Touches no variable.
            update: as `meet` has it.
            like: the variables of which there are gradients, and those that
                the states are for.
            gradient_dtype: of the gradients of `work`.

        Returns:
            A function of what `distribute` or `constant` gives to what
            `update` returns.
        """

        def replica_step(*batch):
            context = tf.distribute.get_replica_context()
            found = work(read(), batch, context.replica_id_in_sync_group)
            return self.meet(update, *found)

        @tf.function(autograph=False)
        def step(batch):
            return self.first(self.run(replica_step, batch))

        return step

    def make_sum_step(
        self, read: Callable, work: Callable
    ) -> Callable[[Any], tf.Tensor]:
        """Makes one step that computes and updates nothing.

        Args:
            read: () to a nest of tensors, the values of the variables, which
                stay as they are while the step is in use.
            work: (values, batch) to a float32 vector.

        Returns:
            A function of what `distribute` or `constant` gives to the sum
            of the vectors over all replicas.
        """

        def replica_step(*batch):
            return work(read(), batch)

        @tf.function(autograph=False)
        def step(batch):
            return self.sum(self.run(replica_step, batch))

        return step

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
        self, make_dataset: Callable[[Part], tf.data.Dataset]
    ) -> Iterator:
        """Iterates over one element of the data set per replica and step.

        Args:
            make_dataset: makes a data set of per-replica batches; replica r
                of the R of a part gets element step * R + r.
        """
        options = tf.distribute.InputOptions(
            experimental_fetch_to_device=self.num_replicas > 1
            or 'gpu' in self.devices[0].lower(),
        )
        part = Part(self.worker, self.num_workers, len(self.devices))
        return iter(
            self.strategy.distribute_datasets_from_function(
                lambda _: make_dataset(part), options
            )
        )

    def constant(self, make_value: Callable[[int], Any]) -> Any:
        """A value per replica, on its device, made once.

        Args:
            make_value: number of the replica to a nest of tensors.
        """

        def value(context):
            index = context.replica_id_in_sync_group
            with tf.device(self.devices[index % len(self.devices)]):
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
