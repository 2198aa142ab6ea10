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
from kbench import packing, pinning, replicas

# Scalars that a worker can report: a slot has a fixed shape.
_MAX_MEASURED = 8
_NO_COPIES = copies_lib.Copies()


def _on_server(operation: tf.Operation) -> str:
    """Device of an operation whose first input is on a server: that server.

    What is computed from a gradient or a weight stays where that is, and so
    does what this takes besides, such as constants: on the coordinator, each
    would cost a call.
    """
    if operation.type in ('ReadVariableOp', 'VarIsInitializedOp'):
        return operation.device
    for tensor in operation.inputs:
        device = tensor.op.device
        if device and '/job:ps' in device and tensor.dtype != tf.resource:
            _bring(operation, device)
            return device
    return operation.device


def _bring(operation, device):
    """Moves inputs that are on no server yet to this one."""
    for tensor in operation.inputs:
        producer = tensor.op
        if tensor.dtype != tf.resource and not (
            producer.device or producer.type in ('Placeholder', 'Arg')
        ):
            producer._set_device(device)
            _bring(producer, device)


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

    def run(self, function, args=()):
        """Refused: functions are scheduled here."""
        raise NotImplementedError

    def distribute(self, make_dataset) -> Iterator:
        """Iterators on the workers; each step takes the next elements."""
        count = len(self.devices)

        def make(worker):
            ahead = self._steps
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
        kind = _Synchronous if self.synchronous else _Asynchronous
        return kind(self, read, work, update, like, gradient_dtype)

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


def _here(value: tf.Tensor | None) -> tf.Tensor | None:
    """The value on the device of the caller."""
    return None if value is None else tf.identity(value)


def _beside(variables, dtypes):
    """How values travel to these variables."""
    return packing.Packing(
        [variable.handle.device for variable in variables],
        [variable.shape for variable in variables],
        dtypes,
    )


class _Asynchronous:
    """Each scheduled function reads, computes and updates by itself."""

    def __init__(self, owner, read, work, update, like, dtype):
        self._owner = owner
        weights, states = like
        reader = copies_lib.Reader(read)
        ways = (
            _beside(weights, [dtype] * len(weights)),
            _beside(states, _dtypes(states)),
        )

        def step(iterator):
            values = reader.unpacked(reader.packed())
            gradients, measured, states = owner.compute(
                work, values, iterator, tf.constant(0)
            )
            gradients, states = (
                way.unpack(way.pack(values), at_home=True)
                for way, values in zip(ways, (gradients, states), strict=True)
            )
            with _beside_inputs():
                return update(gradients, measured, states)

        self._step = _Scheduled(step)

    def __call__(self, iterators):
        remote = self._owner.coordinator.schedule(
            self._step.of(iterators), args=(iterators,)
        )
        return _RemoteVector(self._owner.coordinator, remote)


class _Scheduled:
    """A function for the coordinator, traced once.

    The coordinator would look up the trace each time that it schedules.
    """

    def __init__(self, function):
        self._function = tf.function(function, autograph=False)
        self._concrete = None

    def of(self, *args):
        """The trace for such arguments."""
        if self._concrete is None:
            self._concrete = pinning.trace(self._function, args)
        return self._concrete


class _Synchronous:
    """All workers compute into their slots, then the servers update."""

    def __init__(self, owner, read, work, update, like, dtype):
        self._owner = owner
        self._update_variables = update
        weights, states = like
        self._gradients = _beside(weights, [dtype] * len(weights))
        self._states = _beside(states, _dtypes(states))
        workers = range(owner.num_workers)
        # A server has one slot per worker and pack of gradients.
        self._slots = [
            [_slot(pack) for pack in self._gradients.packs] for _ in workers
        ]
        self._measured = [_measured_slot(weights) for _ in workers]
        self._state_slots = [_slot(pack) for pack in self._states.packs]
        self._num_measured = 0
        self._local = copies_lib.WorkerCopies(
            owner.copies, copies_lib.Reader(read), owner.devices[0]
        )
        self._work = work
        self._compute = _Scheduled(self._compute_into)
        self._refresh = _Scheduled(self._local.refresh)
        self._update = tf.function(self._apply, autograph=False)
        # On the workers already, so that it need not be sent.
        self._numbers = pinning.per_worker(
            [
                pinning.create_on(
                    owner.coordinator,
                    worker,
                    lambda worker=worker: tf.constant(worker),
                    tf.TensorSpec([], tf.int32),
                )
                for worker in workers
            ]
        )
        self._arguments = [self._arguments_of(worker) for worker in workers]

    def _arguments_of(self, worker):
        """What the function of a worker takes besides its images."""
        return (
            self._numbers,
            [slot.handle for slot in self._slots[worker]],
            self._measured[worker].handle,
            [slot.handle for slot in self._state_slots],
        )

    def _compute_into(self, iterator, worker, slots, measured_slot, states):
        owner = self._owner
        gradients, measured, new_states = owner.compute(
            self._work, self._local.use(), iterator, worker
        )
        self._num_measured = len(measured)
        padding = _MAX_MEASURED - len(measured)
        with tf.device(owner.devices[0]):
            measured = tf.stack([*measured] + [0.0] * padding)
            packed = self._gradients.pack(gradients)
            packed_states = self._states.pack(new_states)
        _assign([measured_slot, *slots], [measured, *packed])
        if states:
            # Of the first replica of the job.
            tf.cond(
                tf.equal(worker, 0),
                lambda: _assign(states, packed_states),
                lambda: tf.constant(0),
            )

    def _apply(self):
        packed = []
        for pack, slots in zip(
            self._gradients.packs, zip(*self._slots, strict=True), strict=True
        ):
            with tf.device(pack.device):
                packed += _mean([[slot.read_value()] for slot in slots])
        gradients = self._gradients.unpack(packed, at_home=True)
        states = self._states.unpack(
            [slot.read_value() for slot in self._state_slots], at_home=True
        )
        measured = _mean([[slot.read_value()] for slot in self._measured])[0]
        measured = tf.unstack(measured)[: self._num_measured]
        with _beside_inputs():
            return self._update_variables(gradients, measured, states)

    def __call__(self, iterators):
        owner = self._owner
        for worker, arguments in enumerate(self._arguments):
            arguments = (iterators, *arguments)
            pinning.schedule_on(
                owner.coordinator,
                worker,
                self._compute.of(*arguments),
                arguments,
            )
        owner.coordinator.join()
        owner.count_step()
        vector = self._update()
        if owner.copies.refresh:
            for worker in range(owner.num_workers):
                pinning.schedule_on(
                    owner.coordinator, worker, self._refresh.of(), ()
                )
        return vector


def _dtypes(variables):
    return [tf.as_dtype(variable.dtype) for variable in variables]


def _slot(pack):
    with tf.device(pack.device):
        return tf.Variable(
            lambda: tf.zeros(pack.shape, pack.dtype), trainable=False
        )


def _measured_slot(weights):
    with tf.device(weights[0].handle.device):
        return tf.Variable(lambda: tf.zeros([_MAX_MEASURED]), trainable=False)


def _assign(handles, values):
    for handle, value in zip(handles, values, strict=True):
        tf.raw_ops.AssignVariableOp(resource=handle, value=value)
    return tf.constant(0)
