"""Runs what the parameters ask for."""

import logging
from collections.abc import Callable

from kbench import job as job_lib
from kbench import journal as journal_lib
from kbench import losses, reporting
from kbench import params as params_lib
from kbench.benchmark import all_reduce, evaluation, forward, inputs, training
from kbench.benchmark import program as program_lib
from kbench.benchmark.result import Result

__all__ = ['Result', 'run']

_RUNS = {
    'input': inputs.run,
    'all-reduce': all_reduce.run,
    'evaluation': evaluation.run,
    'forward-only': forward.run,
    'training': training.run,
}

_log = logging.getLogger('kbench')


def run(
    params: params_lib.Params,
    job: job_lib.Job | None = None,
    met: Callable[[], None] = lambda: None,
    journal: journal_lib.Journal | None = None,
) -> Result | None:
    """Trains, evaluates or benchmarks.

    Args:
        params: checked parameters.
        job: the part of this process, None where it is alone.
        met: called when all processes of the job have met.
        journal: takes in what is known of the run while it goes on.

    Returns:
        What the run found; None where it only listed something.

    Raises:
        UserError: what the user can mend, in one line.
    """
    for name in params_lib.set_to_ignored(params):
        _log.warning('--%s is ignored: TensorFlow 2 has no such choice', name)
    program = program_lib.create_program(
        params, job or job_lib.Job(), met, journal or journal_lib.Journal()
    )
    if params.list_weight_decay:
        _list_weight_decay(program)
        return None
    return _RUNS[params_lib.mode(params)](program)


def _list_weight_decay(program: program_lib.Program) -> None:
    for weight in program.model.trainable_weights:
        decayed = losses.is_decayed(
            weight.path, program.params.weight_decay_all
        )
        reporting.out(f'{"decayed" if decayed else "exempt"}\t{weight.path}')
