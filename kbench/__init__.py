"""kbench: benchmark, train and evaluate convolutional networks.

    import kbench

    result = kbench.run(model='resnet50', variable_update='replicated')
    result.images_per_sec

Importing the package does not import TensorFlow.
"""

import logging
from typing import Any

from kbench import (
    datasets,
    job,
    journal,
    models,
    record,
    reporting,
    runtime,
)
from kbench import flags as flags_lib
from kbench import params as params_lib
from kbench.errors import UserError

__version__ = '0.1.0'
__all__ = [
    'Params',
    'UserError',
    'define_flags',
    'load_params',
    'make_params',
    'make_params_from_flags',
    'run',
    'run_params',
    'save_params',
]

Params = params_lib.Params
make_params = params_lib.make_params
save_params = params_lib.save_params
load_params = params_lib.load_params
define_flags = flags_lib.define_flags
make_params_from_flags = flags_lib.make_params_from_flags


def run(**values: Any) -> Any:
    """Runs kbench from Python.

    Args:
        **values: parameters by name, as on the command line.

    Returns:
        A `kbench.benchmark.Result`.

    Raises:
        UserError: what is wrong with a parameter, a file or the machine, in
            one line.
    """
    reporting.route_logging()
    params_lib.await_training(values, logging.getLogger('kbench').info)
    return run_params(make_params(**params_lib.inherit_for_eval(values)))


def run_params(params: Params) -> Any:
    """Runs kbench with parameters that are made already; see `run`."""
    reporting.route_logging()
    if params.list_models is not None:
        specs = models.list_specs(params.list_models)
        if not specs:
            raise params_lib.ParamsError(
                f'--list_models={params.list_models}: no model has such a name'
            )
        reporting.out(models.format_table(specs, params.format == 'json'))
        return None
    part = job.find(params)
    leads = part.cluster is None or part.cluster.coordinates
    notes = journal.Journal()
    if not leads or part.status is not None:
        return _play(params, part, notes, leads)
    with record.kept(params, notes):
        return _play(params, part, notes, leads)


def _play(
    params: Params, part: job.Job, notes: journal.Journal, leads: bool
) -> Any:
    # What needs no TensorFlow is refused before the seconds it takes.
    models.get_spec(params.model)
    if params_lib.is_real_data(params) and not params.download:
        datasets.check_data_dir(
            params.data_dir,
            params.data_name,
            'validation' if params.eval else params.data_subset,
        )
    if leads:
        for name, folder in params_lib.written_folders(params):
            runtime.check_writable(name, folder)

    def train(part, met):
        with runtime.stopping_on_sigterm():
            runtime.import_tensorflow(params_lib.environment(params))
            from kbench import benchmark

            notes.phase('import_tensorflow')
            notes.result = benchmark.run(params, part, met, notes)
            return notes.result

    return job.play(part, params, train)
