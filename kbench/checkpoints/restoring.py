"""Gives variables the values of a checkpoint, by name."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from kbench.checkpoints import files


def shown(names: Iterable[str], how_many: int = 3) -> str:
    """The first names in order, and how many more there are."""
    names = sorted(names)
    rest = len(names) - how_many
    text = ', '.join(names[:how_many])
    return text + (f' and {rest} more' if rest > 0 else '')


def _shown_with_shapes(names: Iterable[str], of: Mapping[str, Any]) -> str:
    return shown(f'{name} {tuple(of[name].shape)}' for name in names)


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
        raise files.CheckpointError(
            f'{path} does not fit {what}: it lacks '
            + _shown_with_shapes(missing, variables)
        )
    excess = values.keys() - variables.keys() - set(others)
    if exact and excess:
        raise files.CheckpointError(
            f'{path} does not fit {what}: it holds '
            f'{_shown_with_shapes(excess, values)} too'
        )
    differing = [
        f'{name} has the shape {values[name].shape} there, '
        f'{tuple(variable.shape)} here'
        for name, variable in variables.items()
        if tuple(variable.shape) != values[name].shape
    ]
    if differing:
        raise files.CheckpointError(
            f'{path} does not fit {what}: {shown(differing)}'
        )
    for name, variable in variables.items():
        variable.assign(values[name])


def check_places(
    path: str,
    names: Iterable[str],
    values: Mapping[str, np.ndarray],
    weights: Mapping[str, Any],
    model: str,
) -> None:
    """Refuses weights of another program that a model has no place for.

    Args:
        path: the file, for messages.
        names: of weights.
        values: array by name.
        weights: the model's by name.
        model: its name, for messages.

    Raises:
        CheckpointError: naming the first ones.
    """
    rest = set(names) - weights.keys()
    if rest:
        raise files.CheckpointError(
            f'{path} does not fit model {model}: it holds '
            f'{_shown_with_shapes(rest, values)} too'
        )


def as_matrix(array: np.ndarray, shape: Sequence[int] | None) -> np.ndarray:
    """A 1x1 convolution of another program as the matrix of a classifier.

    Args:
        array: a weight.
        shape: that it has here; None: it has no place here.
    """
    if shape is not None and len(shape) == 2 and array.ndim == 4:
        return array.reshape(array.shape[-2:])
    return array


def rename(
    values: Mapping[str, np.ndarray], scopes: str
) -> tuple[dict[str, np.ndarray], int]:
    """Puts the variables of one scope into another.

    Args:
        values: array by name.
        scopes: `old:new`; an empty old is the top, so that `:new` puts all
            names into new; an empty new takes names out of old.

    Returns:
        Array by new name, and how many names have changed.
    """
    old, new = (
        scope.strip('/') + '/' if scope.strip('/') else ''
        for scope in scopes.split(':')
    )
    renamed = {
        new + name[len(old) :] if name.startswith(old) else name: value
        for name, value in values.items()
    }
    return renamed, sum(name.startswith(old) for name in values)


def split_head(
    values: Mapping[str, np.ndarray],
    weights: Mapping[str, Any],
    num_classes: int,
) -> tuple[list[str], int | None]:
    """Which weights a checkpoint has for another number of classes.

    Args:
        values: array by name.
        weights: variable of the model by name.
        num_classes: of the model.

    Returns:
        Names of the weights of the head whose shapes differ, all of them in
        the number of classes alone, and that number in the checkpoint. No
        names and None where they agree, or differ in more than that.
    """
    differing = {
        name: values[name].shape
        for name, weight in weights.items()
        if name in values and values[name].shape != tuple(weight.shape)
    }
    counts = {shape[-1] if shape else None for shape in differing.values()}
    fits = len(counts) == 1 and all(
        shape[:-1] == tuple(weights[name].shape)[:-1]
        and weights[name].shape[-1] == num_classes
        for name, shape in differing.items()
    )
    return (sorted(differing), counts.pop()) if fits else ([], None)
