"""How long a training is, and the rates of its steps."""

from kbench import errors, schedules
from kbench import params as params_lib
from kbench.benchmark import program as program_lib


def create_schedule(program: program_lib.Program) -> schedules.Schedule:
    """The rate of every step, as the parameters and the model say."""
    params, per_epoch = program.params, program.steps_per_epoch

    def steps(epochs):
        return schedules.to_steps(epochs, per_epoch)

    if params.piecewise_learning_rate_schedule is not None:
        epochs, rates = params_lib.parse_piecewise(
            params.piecewise_learning_rate_schedule
        )
        schedule = schedules.piecewise([steps(e) for e in epochs], rates)
        return schedules.with_warmup(
            schedule, steps(params.num_learning_rate_warmup_epochs), rates[0]
        )
    own = params.learning_rate is None
    rate = program.spec.learning_rate if own else params.learning_rate
    if params.learning_rate_schedule == 'cosine':
        if own:
            rate = schedules.model_rate(
                program.spec.schedule, rate, program.global_batch_size
            )
        schedule = schedules.cosine(
            rate, total_steps(program), params.minimum_learning_rate
        )
    elif own:
        return schedules.model_schedule(
            program.spec.schedule,
            rate,
            steps_per_epoch=per_epoch,
            global_batch_size=program.global_batch_size,
        )
    elif params.num_epochs_per_decay:
        schedule = schedules.exponential_decay(
            rate,
            max(1, steps(params.num_epochs_per_decay)),
            params.learning_rate_decay_factor,
            params.minimum_learning_rate,
        )
    else:
        schedule = schedules.constant(rate)
    return schedules.with_warmup(
        schedule, steps(params.num_learning_rate_warmup_epochs), rate
    )


def total_steps(program: program_lib.Program) -> int:
    """Updates from the start of a training to its planned end."""
    steps = program_lib.planned_steps(program)
    if program.params.num_epochs is None:
        steps += program_lib.warmup_steps(program)
    return steps


def run_length(
    program: program_lib.Program, steps_done: int
) -> tuple[int, int]:
    """Steps to warm up and steps to time.

    With num_epochs the steps that an earlier run did, and the warm-up, count
    towards the length.

    Raises:
        UserError: a cosine that is over before the run is.
    """
    params = program.params
    warmup = program_lib.warmup_steps(program)
    planned = program_lib.planned_steps(program)
    if params.num_epochs is None:
        if steps_done and params.learning_rate_schedule == 'cosine':
            raise errors.UserError(
                f'--learning_rate_schedule=cosine ends with the run: to go on '
                f'from step {steps_done} it needs --num_epochs, the length '
                'of the whole training'
            )
        return warmup, planned
    left = max(0, planned - steps_done)
    warmup = min(warmup, max(0, left - 1))
    return warmup, left - warmup
