"""Checkpoint files: TensorFlow bundles, each there as a whole or not at all.

A checkpoint of step n is `model.ckpt-n.index` and its data file, as
tf_cnn_benchmarks wrote them. Both are written in a folder beside and synced
before they get their names, the index last: where it is, the checkpoint is
whole.
"""

import contextlib
import glob
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from kbench import errors, files

PREFIX = 'model.ckpt'
_STEP = re.compile(rf'{re.escape(PREFIX)}-(\d+)\.index$')
# Folder in which one is written.
_PARTIAL = '.partial-'
# What a checkpoint of the same step replaces, until it has.
_BEFORE = '.before'
_DAMAGED = '.damaged'


class CheckpointError(errors.UserError):
    """A checkpoint that cannot be used; its text is one line."""


class DamagedError(CheckpointError):
    """Files that are not what was written.

    Attributes:
        path: the checkpoint.
    """

    def __init__(self, path: str, reason: str):
        super().__init__(f'{path} cannot be read: {reason}')
        self.path = path


def all_steps(directory: str) -> list[int]:
    """Steps of the whole checkpoints of a folder, rising."""
    found = map(_STEP.match, os.listdir(directory))
    return sorted(int(match.group(1)) for match in found if match)


def path_of(directory: str, step: int) -> str:
    """Path of the checkpoint of a step, without the ends of its files."""
    return os.path.join(directory, f'{PREFIX}-{step}')


def step_of(path: str) -> int:
    """Step in the name of a checkpoint; -1: there is none."""
    match = _STEP.match(f'{os.path.basename(path)}.index')
    return int(match.group(1)) if match else -1


def latest(directory: str) -> str | None:
    """Path of the newest checkpoint of a folder; None: there is none."""
    if not os.path.isdir(directory):
        return None
    steps = all_steps(directory)
    return path_of(directory, steps[-1]) if steps else None


def _candidates(directory: str) -> list[str]:
    """Paths of all checkpoints, what one was about to replace included."""
    if not os.path.isdir(directory):
        return []
    found = []
    for step in reversed(all_steps(directory)):
        path = path_of(directory, step)
        found.append(path)
        if os.path.exists(f'{path}{_BEFORE}.index'):
            found.append(f'{path}{_BEFORE}')
    return found


def _files(path: str) -> list[str]:
    """Files of a checkpoint, the index last."""
    return sorted(glob.glob(f'{glob.escape(path)}.data-*')) + [f'{path}.index']


def remove(path: str) -> None:
    """Removes a checkpoint."""
    # The index first: what is half removed is not seen as whole.
    for file in reversed(_files(path)):
        with contextlib.suppress(FileNotFoundError):
            os.remove(file)


def set_aside(path: str) -> None:
    """Renames a damaged checkpoint, so that it counts no more."""
    for file in reversed(_files(path)):
        rest = file.removeprefix(path)
        with contextlib.suppress(FileNotFoundError):
            os.replace(file, f'{path}{_DAMAGED}{rest}')


def clean(directory: str) -> None:
    """Removes what a killed process left half written."""
    pattern = os.path.join(glob.escape(directory), f'{PREFIX}-*{_PARTIAL}*')
    for folder in glob.glob(pattern):
        shutil.rmtree(folder, ignore_errors=True)
    pattern = os.path.join(glob.escape(directory), f'{PREFIX}-*.data-*')
    for file in glob.glob(pattern):
        path = file.rpartition('.data-')[0]
        if step_of(path) >= 0 and not os.path.exists(f'{path}.index'):
            os.remove(file)


def _link(source: str, target: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.remove(target)
    try:
        os.link(source, target)
    except OSError:
        # Some file systems have no links.
        shutil.copyfile(source, target)


def _write(path: str, values: Mapping[str, Any]) -> None:
    directory, name = os.path.split(path)
    names = sorted(values)
    folder = tempfile.mkdtemp(prefix=name + _PARTIAL, dir=directory)
    try:
        with tf.device('/cpu:0'):
            tf.raw_ops.SaveV2(
                prefix=os.path.join(folder, name),
                tensor_names=names,
                shape_and_slices=[''] * len(names),
                tensors=[tf.convert_to_tensor(values[one]) for one in names],
            )
        written = _files(os.path.join(folder, name))
        for file in written:
            files.sync(file)
        if os.path.exists(f'{path}.index'):
            for file in _files(path):
                _link(file, f'{path}{_BEFORE}{file.removeprefix(path)}')
        for file in written:
            os.replace(file, os.path.join(directory, os.path.basename(file)))
        with contextlib.suppress(OSError):
            files.sync(directory)
        remove(f'{path}{_BEFORE}')
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def save(
    directory: str, step: int, values: Mapping[str, Any], keep: int
) -> str:
    """Writes a checkpoint and removes the oldest ones.

    Args:
        directory: an existing folder.
        step: number of the checkpoint.
        values: array or tensor by name.
        keep: how many checkpoints stay, this one included.

    Returns:
        The path of the checkpoint.

    Raises:
        CheckpointError: the folder could not be written; what was there is
            there still.
    """
    path = path_of(directory, step)
    try:
        _write(path, values)
        steps = all_steps(directory)
        for old in steps[:-keep]:
            remove(path_of(directory, old))
            remove(path_of(directory, old) + _BEFORE)
        tf.compat.v1.train.update_checkpoint_state(
            directory,
            os.path.basename(path),
            [f'{PREFIX}-{kept}' for kept in steps[-keep:]],
        )
    except (OSError, tf.errors.OpError) as error:
        raise CheckpointError(
            f'{path} could not be written: {_reason(error)}'
        ) from None
    return path


def _reason(error: Exception) -> str:
    text = getattr(error, 'message', None) or str(error)
    return ' '.join(text.splitlines()[:1]) or type(error).__name__


def check_finite(values: Mapping[str, Any], step: int) -> None:
    """Refuses to save infinity or NaN, of which a loss tells a step late.

    Args:
        values: array or tensor by name.
        step: the last step, for messages.

    Raises:
        CheckpointError: naming the first array that is not finite.
    """
    for name, value in values.items():
        if not np.isfinite(np.asarray(value)).all():
            raise CheckpointError(
                f'{name} is not finite after step {step}: no checkpoint is '
                'written'
            )


def load(path: str) -> dict[str, np.ndarray]:
    """Reads all arrays of a checkpoint.

    Raises:
        DamagedError: absent or damaged.
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
        raise DamagedError(path, _reason(error)) from None


def load_newest(
    directory: str, tell: Callable[[str], None]
) -> tuple[str, dict[str, np.ndarray], list[str]] | None:
    """Reads the newest checkpoint of a folder that can be read.

    Args:
        directory: the folder.
        tell: told in one line of each damaged one that is passed over.

    Returns:
        Path, arrays by name, and the paths that were passed over. None where
        the folder has no checkpoint.

    Raises:
        CheckpointError: there are some, and all are damaged.
    """
    paths = _candidates(directory)
    damaged = []
    for path in paths:
        try:
            values = load(path)
        except DamagedError as error:
            damaged.append(error)
            continue
        for error in damaged:
            tell(f'{error}; going back to {os.path.basename(path)}')
        return path, values, paths[: len(damaged)]
    if not paths:
        return None
    raise CheckpointError(
        f'all checkpoints of {directory} are damaged ({len(paths)}): '
        f'{damaged[0]}'
    )


def make_snapshot(
    variables: Mapping[str, Any],
) -> Callable[[], dict[str, tf.Tensor]]:
    """Makes a function that copies variables to the host, all at once.

    Args:
        variables: variable by name; of replicas, the first one is copied.

    Returns:
        () to tensor by name. What is done to the variables afterwards does
        not change the tensors.
    """

    @tf.function(autograph=False)
    def read():
        with tf.device('/cpu:0'):
            return [
                tf.identity(tf.convert_to_tensor(variable))
                for variable in variables.values()
            ]

    return lambda: dict(zip(variables, read(), strict=True))
