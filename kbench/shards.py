"""Weights that are divided among the parameter servers.

A `Divided` stands where TensorFlow's variable stood: in a Keras variable. Its
parts are flat pieces of nearly the same length, each a variable of its own on
a server, with slots and averages of its own beside it. Only the model sees
the whole, put together on the worker. Names are those of the whole, so that
a checkpoint does not show whether there were parts.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

_PART = re.compile(r'part-\d+-of-\d+/')


class Divided:
    """A variable in parts.

    Args:
        parts: vectors, in their order.
        shape: of the whole.
    """

    # Beside no single server.
    device = ''

    def __init__(self, parts: Sequence[tf.Variable], shape: Any):
        self.parts = list(parts)
        self.shape = tf.TensorShape(shape)
        self.dtype = parts[0].dtype

    def join(self, values: Sequence[Any]) -> tf.Tensor:
        """The whole of values of the parts."""
        return tf.reshape(tf.concat(list(values), 0), self.shape)

    def split(self, value: Any) -> list[tf.Tensor]:
        """The parts of a value of the whole."""
        sizes = [part.shape.num_elements() for part in self.parts]
        return tf.split(tf.reshape(value, [-1]), sizes)

    def assign(self, value: Any) -> None:
        """Assigns to all parts."""
        value = tf.convert_to_tensor(value, self.dtype)
        for part, piece in zip(self.parts, self.split(value), strict=True):
            part.assign(piece)

    def numpy(self) -> np.ndarray:
        """The whole."""
        flat = np.concatenate([part.numpy() for part in self.parts])
        return flat.reshape(self.shape)

    def __tf_tensor__(self, dtype=None, name=None):
        whole = self.join([part.read_value() for part in self.parts])
        return tf.convert_to_tensor(whole, dtype, name=name)


class Piece:
    """A part of a weight as the optimizers take it: like a Keras variable.

    Args:
        path: of the part.
        value: its variable.
    """

    def __init__(self, path: str, value: tf.Variable):
        self.path = path
        self.value = value
        self.shape = value.shape
        self.dtype = value.dtype.name

    @property
    def handle(self) -> tf.Tensor:
        """Resource of the variable."""
        return self.value.handle

    def __tf_tensor__(self, dtype=None, name=None):
        return tf.convert_to_tensor(self.value, dtype, name=name)


def count_parts(num_bytes: int, shard_bytes: int, num_ps: int) -> int:
    """Into how many parts a variable is divided.

    Args:
        num_bytes: of the variable.
        shard_bytes: what a part should not exceed; 0 divides nothing.
        num_ps: servers; more parts than that would help nobody.
    """
    if not shard_bytes:
        return 1
    return max(1, min(num_ps, -(-num_bytes // shard_bytes)))


def create(
    value: tf.Tensor, count: int, make: Callable[[int, tf.Tensor], Any]
) -> Divided:
    """Creates a divided variable.

    Args:
        value: first value of the whole.
        count: number of parts, 2 or more.
        make: from number and first value of a part to its variable.
    """
    size = value.shape.num_elements()
    sizes = [size // count + (i < size % count) for i in range(count)]
    parts = tf.split(tf.reshape(value, [-1]), sizes)
    return Divided([make(i, part) for i, part in enumerate(parts)], value.shape)


def _divided(variable: Any) -> Divided | None:
    # Of a Keras variable, without a read.
    value = getattr(variable, '_value', None)
    return value if isinstance(value, Divided) else None


def expand(variables: Sequence[Any]) -> list[Any]:
    """The same variables with pieces in place of those that are divided."""
    expanded = []
    for variable in variables:
        whole = _divided(variable)
        if whole is None:
            expanded.append(variable)
            continue
        count = len(whole.parts)
        expanded += [
            Piece(f'part-{i}-of-{count}/{variable.path}', part)
            for i, part in enumerate(whole.parts)
        ]
    return expanded


def _join(variables: Sequence[Any], values: Sequence[Any]) -> Iterator[Any]:
    values = iter(values)
    for variable in variables:
        whole = _divided(variable)
        if whole is None:
            yield next(values)
        else:
            yield whole.join([next(values) for _ in whole.parts])


def _split(variables: Sequence[Any], values: Sequence[Any]) -> Iterator[Any]:
    for variable, value in zip(variables, values, strict=True):
        whole = _divided(variable)
        if whole is None:
            yield value
        else:
            yield from whole.split(value)


def over_pieces(
    forward: Callable, weights: Sequence[Any], states: Sequence[Any]
) -> Callable:
    """A `train.make_forward` that takes and returns values of pieces.

    Args:
        forward: takes values of these weights and states.
        weights: Keras variables, divided or not.
        states: likewise.
    """
    if not any(_divided(variable) for variable in [*weights, *states]):
        return forward

    def pieces_forward(weight_values, state_values, images, step, replica):
        outputs, new_states = forward(
            list(_join(weights, weight_values)),
            list(_join(states, state_values)),
            images,
            step,
            replica,
        )
        return outputs, list(_split(states, new_states))

    return pieces_forward


def merge(named: Mapping[str, Any], variables: Sequence[Any]) -> dict[str, Any]:
    """Puts what belongs to the pieces together, under the names of wholes.

    Args:
        named: variables by name: those of pieces, their slots and averages.
        variables: the Keras variables that were expanded.
    """
    shapes = {
        variable.path: variable.shape
        for variable in variables
        if _divided(variable)
    }
    merged, parts = {}, {}
    for name, variable in named.items():
        if _PART.match(name):
            parts.setdefault(_PART.sub('', name, count=1), []).append(variable)
        else:
            merged[name] = variable
    for name, found in parts.items():
        path = next(p for p in shapes if name == p or name.startswith(f'{p}/'))
        merged[name] = Divided(found, shapes[path])
    return merged
