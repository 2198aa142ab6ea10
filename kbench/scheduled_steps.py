"""Steps that a coordinator schedules on workers, and updates on servers."""

import contextlib
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from kbench import copies as copies_lib
from kbench import packing, pinning

# Scalars that a worker can report: a slot has a fixed shape.
_MAX_MEASURED = 8


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


def _compute(owner, work, values, iterator, worker):
    """Gradients, measured and states of one worker, in its function."""
    found = []
    count = len(owner.devices)
    for number, device in enumerate(owner.devices):
        batch = next(iterator)
        with tf.device(device):
            found.append(
                work(
                    tf.nest.map_structure(_here, values),
                    batch,
                    worker * count + number,
                )
            )
    gradients, measured, states = zip(*found, strict=True)
    with tf.device(owner.devices[0]):
        return _mean(gradients), _mean(measured), states[0]


def _beside(variables, dtypes):
    """How values travel to these variables."""
    return packing.Packing(
        [variable.handle.device for variable in variables],
        [variable.shape for variable in variables],
        dtypes,
    )


class Asynchronous:
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
            gradients, measured, states = _compute(
                owner, work, values, iterator, tf.constant(0)
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


class Synchronous:
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
        gradients, measured, new_states = _compute(
            owner, self._work, self._local.use(), iterator, worker
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


class _RemoteSum:
    """The sum of what several workers compute; `numpy` waits for it."""

    def __init__(self, coordinator, remotes):
        self._coordinator, self._remotes = coordinator, remotes

    def numpy(self) -> np.ndarray:
        return np.sum(self._coordinator.fetch(self._remotes), axis=0)


class Sum:
    """Workers compute, and nothing is updated.

    With copies every worker has one; else each step reads the variables.
    """

    def __init__(self, owner, read, work):
        self._owner = owner
        local = copies_lib.WorkerCopies(
            copies_lib.Copies(refresh=owner.copies.refresh),
            copies_lib.Reader(read),
            owner.devices[0],
        )
        count = len(owner.devices)

        def compute(iterator):
            values = local.use()
            found = []
            for device in owner.devices:
                batch = next(iterator)
                with tf.device(device):
                    here = tf.nest.map_structure(_here, values)
                    found.append(work(here, batch))
            with tf.device(owner.devices[0]):
                return tf.add_n(found) if count > 1 else found[0]

        self._compute = _Scheduled(compute)
        self._workers = range(owner.num_workers)
        if owner.copies.refresh:
            refresh = _Scheduled(local.refresh)
            for worker in self._workers:
                pinning.schedule_on(owner.coordinator, worker, refresh.of(), ())

    def __call__(self, iterators):
        owner, args = self._owner, (iterators,)
        function = self._compute.of(*args)
        if owner.synchronous:
            owner.count_step()
            remotes = [
                pinning.schedule_on(owner.coordinator, worker, function, args)
                for worker in self._workers
            ]
        else:
            remotes = [owner.coordinator.schedule(function, args=args)]
        return _RemoteSum(owner.coordinator, remotes)


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
