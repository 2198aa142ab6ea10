"""Checkpoints: named arrays in TensorFlow's bundle format.

A checkpoint of step n is `model.ckpt-n.index` and its data file, as
tf_cnn_benchmarks wrote them. Names are the paths of the variables, so that
every mode and every number of replicas reads what any other wrote. The index
file is written last and under its final name in one move: where it is, the
checkpoint is whole.
"""

import glob
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from kbench import errors

PREFIX = 'model.ckpt'
_STEP = re.compile(rf'{re.escape(PREFIX)}-(\d+)\.index$')


class CheckpointError(errors.UserError):
    """A checkpoint that cannot be used; its text is one line."""


def all_steps(directory: str) -> list[int]:
    """Steps of the whole checkpoints of a folder, rising."""
    found = map(_STEP.search, os.listdir(directory))
    return sorted(int(match.group(1)) for match in found if match)


def path_of(directory: str, step: int) -> str:
    """Path of the checkpoint of a step, without the ends of its files."""
    return os.path.join(directory, f'{PREFIX}-{step}')


def latest(directory: str) -> str | None:
    """Path of the newest checkpoint of a folder; None: there is none."""
    if not os.path.isdir(directory):
        return None
    steps = all_steps(directory)
    return path_of(directory, steps[-1]) if steps else None


def save(
    directory: str, step: int, values: Mapping[str, np.ndarray], keep: int
) -> str:
    """Writes a checkpoint and removes the oldest ones.

    Args:
        directory: an existing folder.
        step: number of the checkpoint.
        values: array by name.
        keep: how many checkpoints stay, this one included.

    Returns:
        The path of the checkpoint.

    Raises:
        CheckpointError: the folder could not be written.
    """
    path = path_of(directory, step)
    names = sorted(values)
    try:
        tf.raw_ops.SaveV2(
            prefix=path,
            tensor_names=names,
            shape_and_slices=[''] * len(names),
            tensors=[tf.constant(values[name]) for name in names],
        )
        steps = all_steps(directory)
        for old in steps[:-keep]:
            # The index first: what is half removed is not seen as whole.
            for file in sorted(glob.glob(f'{path_of(directory, old)}.*')):
                if file.endswith('.index'):
                    os.remove(file)
            for file in glob.glob(f'{path_of(directory, old)}.data-*'):
                os.remove(file)
        tf.compat.v1.train.update_checkpoint_state(
            directory,
            os.path.basename(path),
            [f'{PREFIX}-{kept}' for kept in steps[-keep:]],
        )
    except (OSError, tf.errors.OpError) as error:
        text = getattr(error, 'message', None) or str(error)
        raise CheckpointError(
            f'{path} could not be written: {text.splitlines()[0]}'
        ) from None
    return path


def check_finite(values: Mapping[str, np.ndarray], step: int) -> None:
    """Refuses to save infinity or NaN, of which a loss tells a step late.

    Args:
        values: array by name.
        step: the last step, for messages.

    Raises:
        CheckpointError: naming the first array that is not finite.
    """
    for name, value in values.items():
        if not np.isfinite(value).all():
            raise CheckpointError(
                f'{name} is not finite after step {step}: no checkpoint is '
                'written'
            )


def load(path: str) -> dict[str, np.ndarray]:
    """Reads all arrays of a checkpoint.

    Raises:
        CheckpointError: absent or damaged.
    """
    try:
        reader = tf.train.load_checkpoint(path)
        return {
            name: reader.get_tensor(name)
            for name in reader.get_variable_to_shape_map()
        }
    except (
        OSError,
        ValueError,
        # What the reader makes of a data file that ends too early.
        IndexError,
        tf.errors.OpError,
    ) as error:
        text = getattr(error, 'message', None) or str(error)
        raise CheckpointError(
            f'{path} cannot be read: {text.splitlines()[0]}'
        ) from None


def snapshot(variables: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The first replica's values of named variables."""
    return {name: variable.numpy() for name, variable in variables.items()}


def _first(names: Sequence[str], how_many: int = 3) -> str:
    names = sorted(names)
    rest = len(names) - how_many
    shown = ', '.join(names[:how_many])
    return shown + (f' and {rest} more' if rest > 0 else '')


def restore(
    path: str,
    values: Mapping[str, np.ndarray],
    variables: Mapping[str, Any],
    *,
    what: str,
    exact: bool = True,
    others: Sequence[str] = (),
) -> None:
    """Assigns the values of a checkpoint to variables of the same names.

    Args:
        path: the checkpoint, for messages.
        values: what `load` returned.
        variables: variable by name.
        what: what needs them, for messages, such as `model resnet20`.
        exact: whether the checkpoint may hold nothing else.
        others: names that it may hold all the same.

    Raises:
        CheckpointError: names that are missing or too many, or shapes that
            differ; nothing is assigned then.
    """
    missing = variables.keys() - values.keys()
    if missing:
        raise CheckpointError(
            f'{path} does not fit {what}: it lacks {_first(missing)}'
        )
    excess = values.keys() - variables.keys() - set(others)
    if exact and excess:
        raise CheckpointError(
            f'{path} does not fit {what}: it holds {_first(excess)} too'
        )
    for name, variable in variables.items():
        if tuple(variable.shape) != values[name].shape:
            raise CheckpointError(
                f'{path} does not fit {what}: {name} has the shape '
                f'{values[name].shape} there, {tuple(variable.shape)} here'
            )
    for name, variable in variables.items():
        variable.assign(values[name])
