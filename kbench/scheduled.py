"""Replicas on workers that a coordinator schedules.

The variables live on the parameter servers. In a synchronous step each worker
reads them, computes, and assigns its gradients to a slot of its own on the
servers; then the coordinator updates the variables there with the mean of the
slots. Assigning is harmless when it is repeated, so a function whose worker
died simply runs again. Asynchronously each function applies its own gradients.
"""

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.distribute import device_util

from kbench import copies as copies_lib
from kbench import pinning, replicas

# Scalars that a worker can report: a slot has a fixed shape.
_MAX_MEASURED = 8
_NO_COPIES = copies_lib.Copies()


def _on_server(operation: tf.Operation) -> str:
    """Device of an operation whose first input is on a server: that server.

    What is computed from a gradient or a weight stays where that is.
    """
    if operation.type in ('ReadVariableOp', 'VarIsInitializedOp'):
        return operation.device
    for tensor in operation.inputs:
        device = tensor.op.device
        if device and '/job:ps' in device and tensor.dtype != tf.resource:
            return device
    return operation.device


def _mean(lists: Sequence[Sequence[tf.Tensor]]) -> list[tf.Tensor]:
    """Means of the tensors at the same place of several lists."""
    if len(lists) == 1:
        return list(lists[0])
    return [
        tf.add_n(values) * tf.cast(1 / len(values), values[0].dtype)
        for values in zip(*lists, strict=True)
    ]


class _Placement:
    """Spreads variables over the servers: the next to the emptiest."""

    def __init__(self, num_ps: int):
        self.bytes = [0] * num_ps

    def device(self, num_bytes: int) -> str:
        """Where the next variable of so many bytes belongs."""
        server = int(np.argmin(self.bytes))
        self.bytes[server] += num_bytes
        return f'/job:ps/replica:0/task:{server}/device:CPU:0'


class ScheduledReplicas(replicas.Replicas):
    """Replicas on the workers of a ParameterServerStrategy.

    Args:
        strategy: the strategy.
        devices: devices of each worker, such as `/cpu:0`.
        synchronous: whether all workers' gradients make one update.
        copies: what the workers keep.
    """

    remote = True

    def __init__(
        self,
        strategy: tf.distribute.ParameterServerStrategy,
        devices: Sequence[str],
        *,
        num_workers: int,
        num_ps: int,
        synchronous: bool = True,
        copies: copies_lib.Copies = _NO_COPIES,
    ):
        self.strategy = strategy
        self.coordinator = pinning.create_coordinator(strategy)
        self.devices = list(devices)
        self.num_workers = num_workers
        self.synchronous = synchronous
        # Two functions per worker: one runs while the next one waits.
        self.lag = None if synchronous else 2 * num_workers
        together = num_workers if synchronous else 1
        self.num_replicas = len(devices) * together
        self.share_gradients = True
        self.placement = _Placement(num_ps)
        self.copies = copies
        self._steps = 0

    def scope(self) -> contextlib.AbstractContextManager:
        """Variables go to the servers, spread by size."""

        def create(next_creator, **settings):
            value = settings.get('initial_value')
            if callable(value):
                value = value()
            value = tf.convert_to_tensor(value, settings.get('dtype'))
            settings['initial_value'] = value
            device = device_util.current() or ''
            if '/job:ps' not in device:
                device = self.placement.device(
                    value.shape.num_elements() * value.dtype.size
                )
            with tf.device(device):
                return next_creator(**settings)

        return tf.variable_creator_scope(create)

    def settle(self) -> None:
        """Waits for the functions that are scheduled."""
        self.coordinator.join()

    def run(self, function, args=()):
        """Refused: functions are scheduled here."""
        raise NotImplementedError

    def distribute(self, make_dataset) -> Iterator:
        """Iterators on the workers; each step takes the next elements."""
        count = len(self.devices)
        before = self._steps

        def make(worker):
            ahead = self._steps - before
            return make_dataset(
                replicas.Part(worker, self.num_workers, count, ahead)
            )

        return self._iterators(make)

    def constant(self, make_value) -> Any:
        """The same values in every step, on the workers."""
        count = len(self.devices)

        def make(worker):
            elements = [
                tf.data.Dataset.from_tensors(
                    # As one function, not operation by operation.
                    tf.function(make_value, autograph=False)(
                        tf.constant(worker * count + i)
                    )
                )
                for i in range(count)
            ]
            whole = elements[0]
            for element in elements[1:]:
                whole = whole.concatenate(element)
            return whole.repeat()

        return next(self._iterators(make))

    def _iterators(self, make):
        # The elements' spec, without running anything on a worker.
        spec = tf.data.IteratorSpec(make(0).element_spec)
        iterators = [
            pinning.create_on(
                self.coordinator,
                worker,
                lambda worker=worker: iter(make(worker)),
                spec,
            )
            for worker in range(self.num_workers)
        ]
        return itertools.repeat(pinning.per_worker(iterators))

    def make_step(self, read, work, update, like, gradient_dtype):
        """A step that schedules; see the module."""
        if self.synchronous:
            return _Synchronous(self, read, work, update, like, gradient_dtype)
        return _Asynchronous(self, read, work, update)

    def count_step(self) -> None:
        """Notes that one more synchronous step has read its data."""
        self._steps += 1

    def compute(self, work, values, iterator, worker):
        """Gradients, measured and states of one worker, in its function."""
        found = []
        for number, device in enumerate(self.devices):
            batch = next(iterator)
            with tf.device(device):
                found.append(
                    work(
                        tf.nest.map_structure(_here, values),
                        batch,
                        worker * len(self.devices) + number,
                    )
                )
        gradients, measured, states = zip(*found, strict=True)
        with tf.device(self.devices[0]):
            return _mean(gradients), _mean(measured), states[0]


class _RemoteVector:
    """The metrics of a scheduled step; `numpy` waits for them."""

    def __init__(self, coordinator, remote):
        self._coordinator = coordinator
        self._remote = remote

    def numpy(self) -> np.ndarray:
        return np.asarray(self._coordinator.fetch(self._remote))


@contextlib.contextmanager
def _beside_inputs():
    """What is computed in it stays on the server of its inputs."""
    with tf.compat.v1.get_default_graph().device(_on_server):
        yield


class _Asynchronous:
    """Each scheduled function reads, computes and updates by itself."""

    def __init__(self, owner, read, work, update):
        self._coordinator = owner.coordinator

        def step(iterator):
            found = owner.compute(work, read(), iterator, tf.constant(0))
            with _beside_inputs():
                return update(*found)

        self._step = tf.function(step, autograph=False)

    def __call__(self, iterators):
        remote = self._coordinator.schedule(self._step, args=(iterators,))
        return _RemoteVector(self._coordinator, remote)


def _here(value: tf.Tensor | None) -> tf.Tensor | None:
    """The value on the device of the caller."""
    return None if value is None else tf.identity(value)


class _Synchronous:
    """All workers compute into their slots, then the servers update."""

    def __init__(self, owner, read, work, update, like, dtype):
        self._owner = owner
        self._copies = owner.copies
        weights, states = like
        self._devices = [weight.handle.device for weight in weights]
        self._slots = [
            [_slot(weight, dtype) for weight in weights]
            for _ in range(owner.num_workers)
        ]
        self._measured = [
            _slot_on(self._devices[0], tf.zeros([_MAX_MEASURED]))
            for _ in range(owner.num_workers)
        ]
        self._states = [_slot(state, state.dtype) for state in states]
        self._num_measured = 0
        local = copies_lib.WorkerCopies(owner.copies, owner.devices[0])

        def compute(iterator, worker, slots, measured_slot, state_slots):
            gradients, measured, states = owner.compute(
                work, local.use(read), iterator, worker
            )
            self._num_measured = len(measured)
            padding = _MAX_MEASURED - len(measured)
            _assign([measured_slot], [tf.stack([*measured] + [0.0] * padding)])
            _assign(slots, gradients)
            # Of the first replica of the job.
            tf.cond(
                tf.equal(worker, 0),
                lambda: _assign(state_slots, states),
                lambda: tf.constant(0),
            )

        self._compute = tf.function(compute, autograph=False)
        self._refresh = tf.function(
            lambda: local.refresh(read), autograph=False
        )
        self._update = tf.function(lambda: self._apply(update), autograph=False)

    def _apply(self, update):
        gradients = []
        for device, slots in zip(
            self._devices, zip(*self._slots, strict=True), strict=True
        ):
            with tf.device(device):
                gradients += _mean([[slot.read_value()] for slot in slots])
        measured = _mean([[slot.read_value()] for slot in self._measured])[0]
        measured = tf.unstack(measured)[: self._num_measured]
        states = [slot.read_value() for slot in self._states]
        with _beside_inputs():
            return update(gradients, measured, states)

    def __call__(self, iterators):
        owner = self._owner
        for worker in range(owner.num_workers):
            pinning.schedule_on(
                owner.coordinator,
                worker,
                self._compute,
                (
                    iterators,
                    tf.constant(worker),
                    [slot.handle for slot in self._slots[worker]],
                    self._measured[worker].handle,
                    [slot.handle for slot in self._states],
                ),
            )
        owner.coordinator.join()
        owner.count_step()
        vector = self._update()
        if self._copies.refresh:
            for worker in range(owner.num_workers):
                pinning.schedule_on(
                    owner.coordinator, worker, self._refresh, ()
                )
        return vector


def _slot(variable, dtype):
    return _slot_on(variable.handle.device, tf.zeros(variable.shape, dtype))


def _slot_on(device, value):
    with tf.device(device):
        return tf.Variable(value, trainable=False)


def _assign(handles, values):
    for handle, value in zip(handles, values, strict=True):
        tf.raw_ops.AssignVariableOp(resource=handle, value=value)
    return tf.constant(0)
