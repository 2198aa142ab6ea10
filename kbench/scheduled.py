"""Replicas on workers that a coordinator schedules.

The variables live on the parameter servers. In a synchronous step each worker
reads them, computes, and assigns its gradients to a slot of its own on the
servers; then the coordinator updates the variables there with the mean of the
slots. Assigning is harmless when it is repeated, so a function whose worker
died simply runs again. Asynchronously each function applies its own gradients.
"""

import contextlib
import itertools
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.distribute import device_util

from kbench import copies as copies_lib
from kbench import pinning, replicas, scheduled_steps, shards

_log = logging.getLogger('kbench')

_NO_COPIES = copies_lib.Copies()


class _Placement:
    """Spreads variables over the servers: the next to the emptiest."""

    def __init__(self, num_ps: int):
        self.bytes = [0] * num_ps

    def device(self, num_bytes: int) -> str:
        """Where the next variable of so many bytes belongs."""
        server = int(np.argmin(self.bytes))
        self.bytes[server] += num_bytes
        return f'/job:ps/replica:0/task:{server}/device:CPU:0'


def _bytes(value):
    return value.shape.num_elements() * value.dtype.size


class ScheduledReplicas(replicas.Replicas):
    """Replicas on the workers of a ParameterServerStrategy.

    Args:
        strategy: the strategy.
        devices: devices of each worker, such as `/cpu:0`.
        synchronous: whether all workers' gradients make one update.
        num_workers: so many of them.
        num_ps: servers.
        copies: what the workers keep.
        ps_shard_bytes: variables above this size are divided among the
            servers; 0 divides none.
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
        ps_shard_bytes: int = 0,
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
        self.num_ps = num_ps
        self._ps_shard_bytes = ps_shard_bytes
        self.placement = _Placement(num_ps)
        self.copies = copies
        self._steps = 0
        self._told = False

    def scope(self) -> contextlib.AbstractContextManager:
        """Variables go to the servers, spread by size."""

        def create(next_creator, **settings):
            value = settings.pop('initial_value')
            if callable(value):
                value = value()
            value = tf.convert_to_tensor(value, settings.get('dtype'))

            def make(number, part):
                device = device_util.current() or ''
                if '/job:ps' not in device:
                    device = self.placement.device(_bytes(part))
                if number is not None:
                    settings['name'] = f'{settings.get("name")}_{number}'
                with tf.device(device):
                    return next_creator(initial_value=part, **settings)

            count = 1
            # A slot has its place beside its weight.
            if '/job:ps' not in (device_util.current() or ''):
                count = shards.count_parts(
                    _bytes(value), self._ps_shard_bytes, self.num_ps
                )
            if count == 1:
                return make(None, value)
            return shards.create(value, count, make)

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
        self._tell_placement()
        kind = scheduled_steps.Asynchronous
        if self.synchronous:
            kind = scheduled_steps.Synchronous
        return kind(self, read, work, update, like, gradient_dtype)

    def _tell_placement(self):
        if not self._told:
            self._told = True
            shares = ', '.join(f'{n / 1e6:.3f}' for n in self.placement.bytes)
            _log.info('MB of variables on each server: %s', shares)

    def make_sum_step(self, read, work):
        """A step that schedules, and brings the sum here."""
        return scheduled_steps.Sum(self, read, work)

    def count_step(self) -> None:
        """Notes that one more synchronous step has read its data."""
        self._steps += 1
