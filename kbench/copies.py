"""Copies of the weights that workers of a coordinator keep."""

import dataclasses
import itertools
from typing import Any

import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class Copies:
    """How the workers keep weights.

    Attributes:
        refresh: every worker keeps a copy that is refreshed once per step,
            after the update, and computes on that.
        staged: every worker computes on the weights of the step before,
            while it fetches those of this step.
    """

    refresh: bool = False
    staged: bool = False


def _tensors(nest: Any) -> list[tf.Tensor]:
    return [one for one in tf.nest.flatten(nest) if one is not None]


class WorkerCopies:
    """Copies of weights and states in the memory of each worker.

    They are variables that the worker finds by name, so one function serves
    all workers, and one that comes back knows that it holds no copy.
    """

    _numbers = itertools.count()

    def __init__(self, kind: Copies, device: str):
        self._kind = kind
        # A worker outlives a training: what another left there is not ours.
        self._prefix = f'kbench_copy_{next(self._numbers)}'
        self._device = device

    def _handles(self, values):
        with tf.device(self._device):
            return [
                tf.raw_ops.VarHandleOp(
                    dtype=value.dtype,
                    shape=value.shape,
                    shared_name=f'{self._prefix}_{number}',
                )
                for number, value in enumerate(values)
            ]

    def _store(self, handles, values):
        for handle, value in zip(handles, values, strict=True):
            with tf.device(self._device):
                tf.raw_ops.AssignVariableOp(resource=handle, value=value)

    def use(self, read):
        """The values to compute with, in the function of a worker."""
        current = read()
        if not (self._kind.refresh or self._kind.staged):
            return current
        flat = _tensors(current)
        handles = self._handles(flat)
        # The step is assigned last: with it the copy is whole.
        there = tf.raw_ops.VarIsInitializedOp(resource=handles[-1])

        def local():
            return [
                tf.raw_ops.ReadVariableOp(resource=handle, dtype=value.dtype)
                for handle, value in zip(handles, flat, strict=True)
            ]

        if self._kind.staged:
            used = tf.cond(there, local, lambda: flat)
            self._store(handles, flat)
        else:
            # Read in the branch, so that nothing travels without need.
            used = tf.cond(there, local, lambda: _tensors(read()))
        for value, like in zip(used, flat, strict=True):
            value.set_shape(like.shape)
        used = iter(used)
        return tf.nest.map_structure(
            lambda one: None if one is None else next(used), current
        )

    def refresh(self, read):
        """Fetches the values, in the function of a worker."""
        flat = _tensors(read())
        self._store(self._handles(flat), flat)
