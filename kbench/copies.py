"""What workers of a coordinator read, and the copies that they keep of it."""

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from kbench import packing


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


class Reader:
    """Brings the values of variables from their servers to a worker.

    Args:
        read: () to a nest of tensors, the values of the variables.
    """

    def __init__(self, read: Callable[[], Any]):
        self._read = read
        # Read where they are: nothing travels here.
        flat = _tensors(read())
        homes = [one.device for one in flat]
        self._remote = [i for i, h in enumerate(homes) if '/job:ps' in h]
        remote = [flat[i] for i in self._remote]
        self._packing = packing.Packing(
            [one.device for one in remote],
            [one.shape for one in remote],
            [one.dtype for one in remote],
        )

    @property
    def packs(self) -> list[packing.Pack]:
        """What travels."""
        return self._packing.packs

    def packed(self) -> list[tf.Tensor]:
        """What travels, still on the servers, inside a tf.function."""
        flat = _tensors(self._read())
        remote = [flat[i] for i in self._remote]
        return self._packing.pack(remote, at_home=True)

    def unpacked(self, packed: list[tf.Tensor]) -> Any:
        """The nest again, on the current device."""
        current = self._read()
        flat = _tensors(current)
        for i, value in zip(
            self._remote, self._packing.unpack(packed), strict=True
        ):
            flat[i] = value
        values = iter(flat)
        return tf.nest.map_structure(
            lambda one: None if one is None else next(values), current
        )


class WorkerCopies:
    """Copies of weights and states in the memory of each worker.

    They are variables that the worker finds by name, so one function serves
    all workers, and one that comes back knows that it holds no copy.

    Args:
        kind: which copies there are.
        reader: of the values.
        device: of a worker, where the copies are.
    """

    _numbers = itertools.count()

    def __init__(self, kind: Copies, reader: Reader, device: str):
        self._kind = kind
        self._reader = reader
        # A worker outlives a training: what another left there is not ours.
        self._prefix = f'kbench_copy_{next(self._numbers)}'
        self._device = device

    def _handles(self):
        with tf.device(self._device):
            return [
                tf.raw_ops.VarHandleOp(
                    dtype=pack.dtype,
                    shape=pack.shape,
                    shared_name=f'{self._prefix}_{number}',
                )
                for number, pack in enumerate(self._reader.packs)
            ]

    def _store(self, handles, packed):
        for handle, value in zip(handles, packed, strict=True):
            with tf.device(self._device):
                tf.raw_ops.AssignVariableOp(resource=handle, value=value)

    def use(self) -> Any:
        """The values to compute with, in the function of a worker."""
        reader = self._reader
        if not (self._kind.refresh or self._kind.staged):
            return reader.unpacked(reader.packed())
        handles = self._handles()
        # Assigned last: with it the copy is whole.
        there = tf.raw_ops.VarIsInitializedOp(resource=handles[-1])

        def local():
            return [
                tf.raw_ops.ReadVariableOp(resource=handle, dtype=pack.dtype)
                for handle, pack in zip(handles, reader.packs, strict=True)
            ]

        if self._kind.staged:
            current = reader.packed()
            used = tf.cond(there, local, lambda: current)
            self._store(handles, current)
        else:
            # Read in the branch, so that nothing travels without need.
            used = tf.cond(there, local, reader.packed)
        for value, pack in zip(used, reader.packs, strict=True):
            value.set_shape(pack.shape)
        return reader.unpacked(used)

    def refresh(self) -> None:
        """Fetches the values, in the function of a worker."""
        self._store(self._handles(), self._reader.packed())
