"""Functions that run on one worker of a ClusterCoordinator, and no other.

TensorFlow's coordinator gives a function to whichever worker is idle. A
synchronous step gives each worker its own share of the data, so its functions
must be pinned. The queue of the coordinator is the place: this module is an
override of two methods of it, held by a test.
"""

import collections
import logging
import threading
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute.coordinator import cluster_coordinator

_log = logging.getLogger('kbench')


class _Deques:
    """What the coordinator's queue holds, by worker; None is any worker."""

    def __init__(self):
        self._deques = collections.defaultdict(collections.deque)

    def full(self):
        return False

    def qsize(self):
        return sum(map(len, self._deques.values()))

    def empty(self):
        return not self.qsize()

    def put(self, closure, block=True):
        del block
        self._deques[getattr(closure, 'pin', None)].append(closure)

    def has(self, worker):
        return bool(self._deques[worker] or self._deques[None])

    def take(self, worker):
        return (self._deques[worker] or self._deques[None]).popleft()

    def get(self, block=True):
        """Any closure, to cancel it."""
        del block
        for deque in self._deques.values():
            if deque:
                return deque.popleft()
        raise cluster_coordinator.queue.Empty


class _Queue(cluster_coordinator._CoordinatedClosureQueue):
    def __init__(self):
        super().__init__()
        self._queue = _Deques()
        self._lost = set()

    def put(self, closure, tag=None):
        """Adds a closure."""
        super().put(closure, tag)
        # The one thread that is woken may be of another worker.
        with self._queue_lock:
            self._closures_queued_condition.notify_all()

    def put_back(self, closure):
        """Takes back what a lost worker had, and says so once."""
        worker = getattr(closure, 'pin', None)
        if worker is not None and worker not in self._lost:
            self._lost.add(worker)
            _log.warning(
                'worker %d is lost: the job waits for it, and repeats its '
                'part of the step',
                worker,
            )
        super().put_back(closure)
        with self._queue_lock:
            self._closures_queued_condition.notify_all()

    def get(self, timeout=None, tag=None):
        """The next closure for the worker that asks; waits for one."""
        with self._queue_lock:
            tagged = self._tagged_queue[tag]
            while (
                self._should_process_closures
                and tagged.empty()
                and not self._queue.has(tag)
            ):
                if not self._closures_queued_condition.wait(timeout=timeout):
                    return None
                tagged = self._tagged_queue[tag]
            if not self._should_process_closures:
                return None
            if not tagged.empty():
                return tagged.get(block=False)
            closure = self._queue.take(tag)
            if tag in self._lost:
                self._lost.discard(tag)
                _log.warning('worker %d is back', tag)
            self._queue_free_slot_condition.notify()
            self.inflight_closure_count += 1
            return closure


_creation = threading.Lock()


def create_coordinator(
    strategy: tf.distribute.ParameterServerStrategy,
) -> tf.distribute.coordinator.ClusterCoordinator:
    """Creates a coordinator for which `schedule_on` works."""
    with _creation:
        original = cluster_coordinator._CoordinatedClosureQueue
        cluster_coordinator._CoordinatedClosureQueue = _Queue
        try:
            return tf.distribute.coordinator.ClusterCoordinator(strategy)
        finally:
            cluster_coordinator._CoordinatedClosureQueue = original


def trace(function: Any, args: tuple) -> Any:
    """The concrete function for arguments that are on workers.

    Args:
        function: a tf.function.
        args: as for `schedule_on`.
    """
    values = cluster_coordinator
    return function.get_concrete_function(
        *tf.nest.map_structure(
            values._maybe_as_type_spec, values._select_worker_slice(0, args)
        )
    )


def schedule_on(
    coordinator: Any, worker: int, function: Callable, args: tuple
) -> Any:
    """Schedules a function on one worker; repeated there if it dies.

    Args:
        coordinator: from `create_coordinator`.
        worker: number of the worker.
        function: a tf.function, or what `trace` returns.
        args: its arguments; may hold what `create_on` made for this worker.

    Returns:
        A RemoteValue.
    """
    cluster = coordinator._cluster
    values = cluster_coordinator
    closure = values.Closure(
        function, cluster.closure_queue._cancellation_mgr, args=args
    )
    closure.pin = worker
    value = closure.build_output_remote_value()
    cluster.closure_queue.put(closure)
    return value


def create_on(
    coordinator: Any, worker: int, make: Callable[[], Any], spec: Any
) -> Any:
    """Makes a resource on one worker, anew each time that it comes back.

    Args:
        coordinator: from `create_coordinator`.
        worker: number of the worker.
        make: runs eagerly, with the worker as its device.
        spec: the TypeSpec of what it returns.

    Returns:
        A RemoteValue that scheduled functions take as an argument.
    """
    remote = coordinator._cluster.workers[worker].create_resource(make)
    remote._type_spec = spec
    return remote


def per_worker(values: list) -> Any:
    """An argument that is another value on each worker."""
    return cluster_coordinator.PerWorkerValues(tuple(values))
