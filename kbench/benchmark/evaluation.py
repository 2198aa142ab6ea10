"""Evaluation of a checkpoint, and benchmarks of inference."""

import logging

import tensorflow as tf

from kbench import (
    errors,
    evaluate,
    loop,
    losses,
    metrics,
    reporting,
    train,
)
from kbench.benchmark import data as data_lib
from kbench.benchmark import program as program_lib
from kbench.benchmark import restoring
from kbench.benchmark import result as result_lib
from kbench.benchmark import tracing

_log = logging.getLogger('kbench')


def _make_infer(program: program_lib.Program):
    model = program.model
    return evaluate.make_infer(
        train.make_forward(
            model, seed=program.params.tf_random_seed, training=False
        ),
        prepare=data_lib.make_prepare(program),
        weights=model.trainable_weights,
        states=model.non_trainable_weights,
    )


def run(program: program_lib.Program) -> result_lib.Result:
    """Evaluates the latest checkpoint on every image of the split.

    Raises:
        UserError: no checkpoint, or one that does not fit; no real data.
    """
    params = program.params
    if program.data.dataset is None:
        raise errors.UserError(
            '--eval needs real data: set --data_dir, or --data_name=digits'
        )
    path, step_number = restoring.for_evaluation(program)
    averaged = params.moving_average_decay is not None
    reporting.out(program_lib.header(program, 'evaluation', None))
    which = 'moving averages' if averaged else 'weights'
    _log.info('evaluating the %s of %s', which, path)
    step = evaluate.make_eval_step(program.replicas, _make_infer(program))
    total = program.data.num_examples
    batches = data_lib.Batches(program)
    program.journal.batches = batches
    with reporting.Progress().stage('evaluating', total=total) as stage:
        done = 0

        def on_step(num_images):
            nonlocal done
            stage.advance(num_images - done)
            done = num_images

        found = evaluate.run(step, batches.eval(), on_step)
    if found.num_images + batches.skipped_images != total:
        raise errors.UserError(
            f'{found.num_images} images were evaluated where {total} were '
            f'announced by {program.data.name}'
        )
    if batches.skipped_images:
        _log.warning(
            '%d images could not be read and were skipped',
            batches.skipped_images,
        )
    reporting.out(
        reporting.evaluation_line(
            found.top_1, found.top_5, found.num_images, found.loss
        )
    )
    reporting.out(reporting.total_lines(found.images_per_sec))
    return result_lib.Result(
        mode='evaluation',
        model=program.spec.name,
        images_per_sec=found.images_per_sec,
        skipped_images=batches.skipped_images,
        checkpoint=path,
        step=step_number,
        evaluation=found,
    )


def run_forward_only(program: program_lib.Program) -> result_lib.Result:
    """Times inference on training batches."""
    params = program.params
    loss_fn = losses.make_classification_loss(
        label_smoothing=params.label_smoothing,
        aux_loss_weight=program.spec.aux_loss_weight,
    )

    def measure(outputs, labels):
        values = [loss_fn(outputs[:1], labels)]
        if params.print_training_accuracy:
            values += metrics.accuracies(outputs, labels)
        return tf.stack(values)

    step = tracing.with_graph(
        program,
        evaluate.make_forward_step(
            program.replicas, _make_infer(program), measure
        ),
    )
    reporting.out(program_lib.header(program, 'forward-only', None))
    record = loop.Record(program.global_batch_size)
    program.journal.timed = record
    source = data_lib.Batches(program)
    program.journal.batches = source
    batches = source.train(0)
    lag = program.lag
    progress = reporting.Progress()
    warmup = program_lib.warmup_steps(program)
    for name, steps, around in tracing.untimed(program, warmup):
        with around, progress.stage(name, total=steps) as stage:
            for _ in loop.run_steps(step, batches, steps, lag):
                program.journal.phase('first_step')
                stage.advance()
    program.journal.phase('warm_up')

    def on_step(number, finished):
        stage.advance()
        if number == 1 or number % params.display_every == 0:
            reporting.out(
                reporting.step_line(
                    number, record.throughput(), *finished.metrics
                )
            )

    reporting.out(reporting.table_head(params.print_training_accuracy))
    count = program_lib.planned_steps(program)
    with progress.stage('inferring', total=count) as stage:
        loop.run(loop.run_steps(step, batches, count, lag), record, on_step)
    reporting.out(reporting.total_lines(record.images_per_sec()))
    data_lib.report_input(program, record, source)
    return result_lib.Result(
        mode='forward-only',
        model=program.spec.name,
        images_per_sec=record.images_per_sec(),
        losses=tuple(float(v[metrics.LOSS]) for v in record.metrics),
        step_times_sec=tuple(record.step_times_sec),
        input_wait_sec=tuple(record.input_wait_sec),
    )
