"""Which weights are exported, and what comes before them."""

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from kbench import averages, export, models
from kbench.benchmark import program as program_lib

_log = logging.getLogger('kbench')


def of_model(program: program_lib.Program, step: int) -> None:
    """Exports the weights that are in the model, if that is asked for."""
    if program.params.export is None:
        return
    _write(program, {one.path: one for one in program.model.weights}, step)


def of_training(training: Any) -> None:
    """Exports what a training has made: the averages, where there are some."""
    program = training.program
    if program.params.export is None or not program.replicas.is_chief:
        return
    named = training.variables()
    paths = [weight.path for weight in program.model.weights]
    names = paths
    if training.averages is not None:
        names = map(averages.average_name, paths)
    variables = {p: named[n] for p, n in zip(paths, names, strict=True)}
    _write(program, variables, training.step())


def _write(
    program: program_lib.Program, variables: Mapping[str, Any], step: int
) -> None:
    params, data = program.params, program.data
    values: dict[str, np.ndarray] = {
        path: tf.convert_to_tensor(variable).numpy()
        for path, variable in variables.items()
    }
    # A copy of one process, in the layout that runs everywhere.
    with (
        tf.device('/cpu:0'),
        models.keras_config(program.precision.policy, 'NHWC'),
    ):
        model = models.create_model(program.spec, data.num_classes)
        export.write(
            params.export,
            model,
            values,
            export.Pixels(
                size=program.image_size,
                small=data.image_dataset == 'cifar10',
                eval_method=params.eval_method,
                resize_method=params.resize_method,
            ),
            {
                'model': program.spec.name,
                'step': step,
                'num_classes': data.num_classes,
                'data': data.name,
                'precision': program.precision.policy,
                'moving_averages': params.moving_average_decay is not None,
            },
        )
    _log.info('exported to %s', params.export)
