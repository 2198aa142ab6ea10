"""Training: its variables, its schedule, its loop and its checkpoints."""

import logging
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from kbench import (
    averages,
    checkpoints,
    errors,
    gradients,
    loop,
    losses,
    metrics,
    optimizers,
    precision,
    reporting,
    runtime,
    shards,
    train,
)
from kbench import params as params_lib
from kbench.benchmark import data as data_lib
from kbench.benchmark import plan
from kbench.benchmark import program as program_lib
from kbench.benchmark import result as result_lib
from kbench.benchmark import saver as saver_lib

_log = logging.getLogger('kbench')

_STEP, _POSITION = 'global_step', 'batches_seen'


class Training:
    """The variables of a training and what may be done with them.

    Args:
        program: the objects of the run.

    Attributes:
        program: the objects of the run.
        state: weights, other states and step.
        schedule: rate by step.
        steps_seen: steps started since the training began, skipped ones
            included: the position in the data.
        stopped: why the training ended early, None where it did not.
    """

    def __init__(self, program: program_lib.Program):
        params, model = program.params, program.model
        self.program = program
        self.schedule = plan.create_schedule(program)
        self.steps_seen = 0
        self.stopped: str | None = None
        with program.replicas.scope():
            self.state = train.TrainState(
                weights=shards.expand(model.trainable_weights),
                states=shards.expand(model.non_trainable_weights),
                step=tf.Variable(
                    0,
                    trainable=False,
                    dtype=tf.int64,
                    name=_STEP,
                    aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
                ),
            )
            self._optimizer = optimizers.create(
                params.optimizer,
                self.state.weights,
                optimizers.Settings(
                    momentum=params.momentum,
                    rmsprop_decay=params.rmsprop_decay,
                    rmsprop_momentum=params.rmsprop_momentum,
                    rmsprop_epsilon=params.rmsprop_epsilon,
                    weight_decay=params.weight_decay,
                ),
                program.decayed,
            )
            self._loss_scale = precision.LossScale(
                program_lib.loss_scale(program),
                dynamic=params.fp16_enable_auto_loss_scale,
                growth_steps=params.fp16_inc_loss_scale_every_n,
                can_overflow=program.precision.can_overflow
                or params.fp16_compress_gradients,
            )
            self._averages = None
            if params.moving_average_decay is not None:
                self._averages = averages.MovingAverages(
                    params.moving_average_decay,
                    {one.path: one for one in shards.expand(model.weights)},
                )

    def make_step(self):
        """Makes the train step of this run."""
        program, params = self.program, self.program.params
        in_loss = not program_lib.decays_weights(params)
        forward = train.make_forward(
            program.model, seed=params.tf_random_seed, training=True
        )
        compute = train.make_compute(
            shards.over_pieces(
                forward,
                program.model.trainable_weights,
                program.model.non_trainable_weights,
            ),
            losses.make_classification_loss(
                label_smoothing=params.label_smoothing,
                aux_loss_weight=program.spec.aux_loss_weight,
            ),
            prepare=data_lib.make_prepare(program),
            accuracy=params.print_training_accuracy,
            num_micro_batches=params.num_grad_accumulation,
            xla=params.xla,
        )
        apply = train.make_apply(
            state=self.state,
            optimizer=self._optimizer,
            schedule=self.schedule,
            averages=self._averages,
            clip=gradients.make_clip(
                params.gradient_clip, params.gradient_clip_norm
            ),
        )
        return train.make_train_step(
            replicas=program.replicas,
            compute=compute,
            state=self.state,
            loss_scale=self._loss_scale,
            apply=apply,
            l2=losses.L2(
                params.weight_decay if in_loss else 0.0, program.decayed
            ),
            compress_gradients=params.fp16_compress_gradients,
        )

    def learning_rate(self) -> float:
        """Rate of the next update."""
        return float(self.schedule(tf.constant(self.step(), tf.int64)))

    def step(self) -> int:
        """Updates done."""
        return int(self.state.step.numpy())

    def skipped_steps(self) -> int:
        """Updates left out for overflow since the training began."""
        return self._loss_scale.skipped_steps()

    def _variables(self) -> dict[str, Any]:
        named = {weight.path: weight for weight in self.program.model.weights}
        named |= self._optimizer.slots | {_STEP: self.state.step}
        if self._averages is not None:
            named |= self._averages.variables
        return shards.merge(named, self.program.model.weights)

    def take(self) -> dict[str, np.ndarray]:
        """Copies everything that a checkpoint holds.

        Raises:
            CheckpointError: with stop_on_nan, values that are not finite.
        """
        values = checkpoints.snapshot(
            self._variables() | self._loss_scale.variables
        )
        values[_POSITION] = np.int64(self.steps_seen)
        if self.program.params.stop_on_nan:
            checkpoints.check_finite(values, self.steps_seen)
        return values

    def write(self, values: Mapping[str, np.ndarray]) -> str:
        """Writes what `take` returned; returns the path."""
        params = self.program.params
        if not self.program.replicas.is_chief:
            return checkpoints.path_of(params.train_dir, int(values[_STEP]))
        return checkpoints.save(
            params.train_dir,
            int(values[_STEP]),
            values,
            keep=params.max_ckpts_to_keep,
        )

    def restore(self, path: str) -> None:
        """Goes on where a checkpoint was written.

        Raises:
            CheckpointError: it does not fit, or is damaged.
        """
        program, variables = self.program, self._variables()
        values = checkpoints.load(path)
        program_lib.restore_weights(program, path, values)
        dropped = set()
        if self._averages is None:
            dropped = {
                averages.average_name(weight.path)
                for weight in program.model.weights
            } & values.keys()
        checkpoints.restore(
            path,
            values,
            variables,
            what=f'a training with --optimizer={program.params.optimizer}',
            others=[_POSITION, *precision.STATE_NAMES, *dropped],
        )
        if dropped:
            _log.warning(
                'the moving averages of %s end here: '
                '--moving_average_decay is not set',
                path,
            )
        # A run may go on in another precision: its scale starts anew then.
        scale = self._loss_scale.variables
        if scale.keys() <= values.keys():
            checkpoints.restore(
                path, values, scale, what='the loss scale', exact=False
            )
        self.steps_seen = int(values[_POSITION])
        _log.info('resuming from %s at step %d', path, self.step())
        replicas = program.replicas
        if replicas.num_replicas > 1 and not replicas.share_gradients:
            _log.warning(
                'the checkpoint holds the copy of the first replica: all go '
                'on from that one'
            )


def run(program: program_lib.Program) -> result_lib.Result:
    """Trains, times, saves.

    Raises:
        UserError: a checkpoint that does not fit, a loss that is not finite
            with stop_on_nan, a folder that cannot be written.
    """
    params = program.params
    training = Training(program)
    path = checkpoints.latest(params.train_dir) if params.train_dir else None
    if path is not None:
        training.restore(path)
    if params.train_dir:
        program.replicas.check_same(training.steps_seen, 'the checkpoint')
        if program.replicas.is_chief:
            params_lib.save_params(params, params.train_dir)
    warmup, timed = plan.run_length(program, training.step())
    reporting.out(
        program_lib.header(program, 'training', training.learning_rate())
    )
    if timed == 0:
        _log.warning('all %g epochs are done already', params.num_epochs)
        return result_lib.Result(
            mode='training',
            model=program.spec.name,
            images_per_sec=0.0,
            learning_rate=training.learning_rate(),
            step=training.step(),
            checkpoint=path,
        )
    record = loop.Record(images_per_step=program.global_batch_size)
    watch = loop.Watch(
        dynamic=params.fp16_enable_auto_loss_scale,
        stop_on_nan=params.stop_on_nan,
        warn=_log.warning,
    )
    batches = data_lib.Batches(program)
    _run_steps(training, record, watch, batches, (warmup, timed))
    path = training.write(training.take()) if params.train_dir else None
    reporting.out(reporting.total_lines(record.images_per_sec()))
    data_lib.report_input(program, record, batches)
    _report_trouble(record, watch)
    _tell_local_figure(program, record)
    program.replicas.finish()
    reason = training.stopped
    if reason is not None:
        raise errors.Preempted(
            f'{reason}: ended after step {training.step()}; '
            + (f'saved {path}' if path else 'nothing saved: no --train_dir')
        )
    return _result(training, record, watch, batches, path)


def _report_trouble(record, watch) -> None:
    if watch.skipped_steps:
        _log.warning(
            '%d steps overflowed and were skipped; the loss scale is %g',
            watch.skipped_steps,
            record.metrics[-1][metrics.LOSS_SCALE],
        )
    if watch.first_bad_step is not None:
        _log.warning(
            'the loss was not finite from step %d on', watch.first_bad_step
        )


def _run_steps(training, record, watch, batches, length) -> None:
    program, params = training.program, training.program.params
    warmup, timed = length
    step = training.make_step()
    batches = batches.train(training.steps_seen)
    lag = program.lag
    progress = reporting.Progress()

    def see(finished):
        training.steps_seen += 1
        watch.see(training.steps_seen, finished.metrics)
        stage.advance()

    def stop(vector):
        reason = runtime.stop_requested()
        if program.replicas.stop_wanted(reason is not None, vector):
            training.stopped = reason or 'another worker was asked to end'
        return training.stopped is not None

    with progress.stage('warming up', total=warmup) as stage:
        for finished in loop.run_steps(step, batches, warmup, lag, stop=stop):
            see(finished)
    if training.stopped is not None:
        return
    saver = saver_lib.Saver(training)

    def on_step(number, finished):
        see(finished)
        if number == 1 or number % params.display_every == 0:
            reporting.out(
                reporting.step_line(
                    number,
                    record.throughput(),
                    float(finished.metrics[metrics.LOSS]),
                    [
                        float(finished.metrics[column])
                        for column in (metrics.TOP_1, metrics.TOP_5)
                        if params.print_training_accuracy
                    ],
                )
            )
        saver.after(number)

    reporting.out(reporting.table_head(params.print_training_accuracy))
    with progress.stage('training', total=timed) as stage:
        loop.run(
            loop.run_steps(step, batches, timed, lag, saver.is_due, stop),
            record,
            on_step,
        )


def _tell_local_figure(program, record) -> None:
    replicas = program.replicas
    if replicas.is_chief:
        return
    share = len(replicas.devices) / replicas.num_replicas
    reporting.notice(
        f'worker {replicas.worker}: local images/sec: '
        f'{share * record.images_per_sec():.2f}'
    )


def _column(record, column):
    values = (float(vector[column]) for vector in record.metrics)
    return tuple(value for value in values if not math.isnan(value))


def _result(training, record, watch, batches, path) -> result_lib.Result:
    last = record.metrics[-1]
    return result_lib.Result(
        mode='training',
        model=training.program.spec.name,
        images_per_sec=record.images_per_sec(),
        losses=tuple(float(v[metrics.LOSS]) for v in record.metrics),
        top_1=_column(record, metrics.TOP_1),
        top_5=_column(record, metrics.TOP_5),
        learning_rate=training.learning_rate(),
        gradient_norms=_column(record, metrics.GRADIENT_NORM),
        step_times_sec=tuple(record.step_times_sec),
        input_wait_sec=tuple(record.input_wait_sec),
        skipped_steps=training.skipped_steps(),
        skipped_images=batches.skipped_images,
        loss_scale=float(last[metrics.LOSS_SCALE]),
        step=training.step(),
        first_bad_step=watch.first_bad_step,
        checkpoint=path,
    )
