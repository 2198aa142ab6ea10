"""From which checkpoint a run goes on, begins, or is evaluated."""

import logging
import os
from typing import Any

import numpy as np
import tensorflow as tf

from kbench import averages, checkpoints, errors, precision
from kbench.benchmark import program as program_lib
from kbench.benchmark import state as state_lib

_log = logging.getLogger('kbench')


def begin(training: state_lib.Training) -> str | None:
    """Gives a training the values that its parameters ask for.

    Returns:
        The checkpoint that it goes on from; None where it begins.

    Raises:
        CheckpointError: one does not fit, is damaged, or is not there.
    """
    params, replicas = training.program.params, training.program.replicas
    source = _source(params)
    if source is not None:
        _resume(training, source)
        _tell(training, source)
    elif params.init_checkpoint is not None:
        _initialize(training)
    if params.train_dir:
        replicas.check_same(training.steps_seen, 'the checkpoint')
    if source is None:
        return None
    if replicas.is_chief:
        for path in source.passed_over:
            checkpoints.set_aside(path)
    return source.path


def _tell(training, source) -> None:
    replicas = training.program.replicas
    _log.info('resuming from %s at step %d', source.path, training.step())
    if replicas.num_replicas > 1 and not replicas.share_gradients:
        _log.warning(
            'the checkpoint holds the copy of the first replica: all go '
            'on from that one'
        )


def _source(params: Any) -> checkpoints.Source | None:
    """What a training goes on from, if it does."""
    given, own = params.checkpoint, None
    if params.train_dir:
        own = checkpoints.latest(params.train_dir)
    if given is not None and own is not None:
        _check_order(given, own)
    if own is not None:
        return checkpoints.read(params.train_dir, _log.warning)
    if given is None:
        return None
    source = checkpoints.read(given, _log.warning)
    if source.has_weights_only:
        raise checkpoints.CheckpointError(
            f'--checkpoint={given} holds weights alone, and no training can '
            'go on from it: --init_checkpoint begins one'
        )
    # It is of another folder, which is not for this run to clean up.
    source.passed_over = ()
    return source


def _check_order(given: str, own: str) -> None:
    """What happens to --checkpoint where the train_dir has some of its own."""
    folder = os.path.dirname(own)
    inside = os.path.realpath(os.path.dirname(given)) == os.path.realpath(
        folder
    )
    step = checkpoints.step_of(given.removesuffix('.index'))
    if not inside:
        if os.path.realpath(given) != os.path.realpath(folder):
            _log.warning(
                '--checkpoint=%s is not read: --train_dir has checkpoints of '
                'its own, and the run goes on from %s',
                given,
                own,
            )
    elif step != checkpoints.step_of(own):
        raise checkpoints.CheckpointError(
            f'--checkpoint={given} is not the newest of its folder, {own} is: '
            'to go on from it, set another --train_dir or remove the newer '
            'ones'
        )


def _renamed(params, source, asked_for: bool) -> None:
    """Applies ckpt_scope; a file that was asked for has to have the scope."""
    if params.ckpt_scope is None or not source.values:
        return
    source.values, count = checkpoints.rename(source.values, params.ckpt_scope)
    if not count and asked_for:
        raise checkpoints.CheckpointError(
            f'--ckpt_scope={params.ckpt_scope}: no variable of {source.path} '
            f'has that scope; it has {checkpoints.shown(source.values)}'
        )


def _named(
    program: program_lib.Program, source: checkpoints.Source
) -> dict[str, np.ndarray]:
    weights = {
        weight.path: tuple(weight.shape) for weight in program.model.weights
    }
    return source.named_for(
        weights,
        program.spec.name,
        program.params.ckpt_data_format,
        _log.warning,
    )


def _resume(
    training: state_lib.Training, source: checkpoints.Source
) -> dict[str, np.ndarray]:
    """Goes on where a checkpoint was written; returns what it holds."""
    program = training.program
    path = source.path
    if source.has_weights_only:
        raise checkpoints.CheckpointError(
            f'{path} is of another program and holds no state of a training: '
            '--init_checkpoint begins one from it, with another --train_dir'
        )
    _renamed(program.params, source, asked_for=False)
    values = source.values
    program_lib.restore_weights(program, path, values)
    dropped = set()
    if training.averages is None:
        dropped = {
            averages.average_name(weight.path)
            for weight in program.model.weights
        } & values.keys()
    checkpoints.restore(
        path,
        values,
        training.variables(),
        what=f'a training with --optimizer={program.params.optimizer}',
        others=[*state_lib.NUMBERS, *precision.STATE_NAMES, *dropped],
    )
    if dropped:
        _log.warning(
            'the moving averages of %s end here: '
            '--moving_average_decay is not set',
            path,
        )
    # A run may go on in another precision: its scale starts anew then.
    scale = training.loss_scale.variables
    if scale.keys() <= values.keys():
        checkpoints.restore(
            path, values, scale, what='the loss scale', exact=False
        )
    _take_position(training, values)
    return values


def _take_position(training, values) -> None:
    """The place in the data, and what makes it another one here."""
    program = training.program
    steps = training.steps_seen = int(values[state_lib.STEPS_SEEN])
    seed, parts = program.params.tf_random_seed, program.replicas.num_workers
    # The first checkpoints of kbench counted steps alone.
    images, seed_before, parts_before = (
        int(values.get(name, default))
        for name, default in (
            (state_lib.IMAGES_SEEN, steps * program.global_batch_size),
            (state_lib.SEED, seed),
            (state_lib.PARTS, parts),
        )
    )
    training.images_seen = images
    if program.data.dataset is None:
        return
    if seed != seed_before:
        _log.warning(
            'the images go on in another order: --tf_random_seed is %d here, '
            '%d in the checkpoint',
            seed,
            seed_before,
        )
    if parts != parts_before:
        _log.warning(
            'the rest of the epoch has other images: %d processes read them '
            'here, %d read those before',
            parts,
            parts_before,
        )
    again = training.images_seen % state_lib.images_per_round(program)
    synchronous = program.replicas.num_replicas == (
        program.replicas.total_replicas
    )
    if again and synchronous:
        _log.warning(
            '%d images come again: the global batch of %d divides the %d '
            'images that were seen with that rest',
            again,
            program.global_batch_size,
            training.images_seen,
        )
        training.images_seen -= again


def _initialize(training: state_lib.Training) -> None:
    """Begins with the weights of a checkpoint and nothing else of it."""
    program = training.program
    params, model = program.params, program.model
    source = checkpoints.read(params.init_checkpoint, _log.warning)
    _renamed(params, source, asked_for=True)
    values = _named(program, source)
    weights = {weight.path: weight for weight in model.weights}
    left_out = _head_without_values(weights, values, program.data.num_classes)
    head, count = checkpoints.split_head(
        values, weights, program.data.num_classes
    )
    checkpoints.restore(
        source.path,
        values,
        {
            name: weight
            for name, weight in weights.items()
            if name not in {*head, *left_out}
        },
        what=f'model {program.spec.name}',
        exact=False,
    )
    if training.averages is not None:
        named = training.variables()
        for name, weight in weights.items():
            named[averages.average_name(name)].assign(
                tf.convert_to_tensor(weight)
            )
    _log.info('beginning with the weights of %s', source.path)
    if head or left_out:
        there = f'{count} classes' if head else 'no head'
        _log.warning(
            '%s start anew: %s has %s, the data has %d',
            checkpoints.shown({*head, *left_out}),
            source.path,
            there,
            program.data.num_classes,
        )


def _head_without_values(weights, values, num_classes) -> list[str]:
    """Weights of classifiers, where a file was saved without them."""
    layers: dict[str, list[str]] = {}
    for name in weights:
        layers.setdefault(name.rpartition('/')[0], []).append(name)
    return [
        name
        for names in layers.values()
        if not any(name in values for name in names)
        and all(weights[name].shape[-1] == num_classes for name in names)
        and any(len(weights[name].shape) == 2 for name in names)
        for name in names
    ]


def for_evaluation(
    program: program_lib.Program, path: str | None = None
) -> tuple[str, int]:
    """Gives the model the weights that are to be evaluated.

    Args:
        program: whose model.
        path: the checkpoint; None for --checkpoint or the newest.

    Returns:
        The path, and the number of updates that made the weights.

    Raises:
        CheckpointError: there is none, it does not fit, or is damaged.
    """
    params = program.params
    path = path or params.checkpoint
    if path is None and checkpoints.latest(params.train_dir) is None:
        raise errors.UserError(
            f'--train_dir={params.train_dir} holds no checkpoint to evaluate'
        )
    source = checkpoints.read(path or params.train_dir, _log.warning)
    _renamed(params, source, asked_for=params.checkpoint is not None)
    values = _named(program, source)
    weights = {weight.path: weight for weight in program.model.weights}
    if source.has_weights_only and source.layers is None:
        head, _ = checkpoints.split_head(
            values, weights, program.data.num_classes
        )
        told = checkpoints.drop_unused_class(
            values, head, program.data.num_classes
        )
        if told is not None:
            _log.warning('%s', told)
    program_lib.restore_weights(
        program,
        source.path,
        values,
        averaged=params.moving_average_decay is not None,
    )
    return source.path, int(source.values.get(state_lib.STEP, 0))


def recover(training: state_lib.Training, text: str, flush: Any) -> int:
    """Goes back to the last checkpoint, and on behind the batch at fault.

    Args:
        training: whose loss is not finite.
        text: says so.
        flush: called first, so that what is being written is there.

    Returns:
        How many steps are to be done again.

    Raises:
        UserError: --recover_on_nan is used up.
    """
    program = training.program
    allowed = program.params.recover_on_nan
    if training.recoveries >= allowed:
        raise errors.UserError(f'{text}; --recover_on_nan={allowed} is used up')
    training.recoveries += 1
    flush()
    program.replicas.settle()
    steps, images = training.steps_seen, training.images_seen
    # The other processes read what the chief has written by now.
    program.replicas.check_same(steps, 'the step')
    source = checkpoints.read(program.params.train_dir, _log.warning)
    values = _resume(training, source)
    lost = steps - int(values[state_lib.STEPS_SEEN])
    training.steps_seen, training.images_seen = steps, images
    _log.warning(
        '%s: back to %s, %d steps are done again with the images that follow '
        '(recovery %d of %d)',
        text,
        os.path.basename(source.path),
        lost,
        training.recoveries,
        allowed,
    )
    return lost
