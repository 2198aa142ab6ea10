"""The variables of a training, and what is saved of it."""

from typing import Any

import numpy as np
import tensorflow as tf

from kbench import (
    averages,
    checkpoints,
    gradients,
    losses,
    optimizers,
    precision,
    shards,
    train,
)
from kbench.benchmark import data as data_lib
from kbench.benchmark import plan, summarizing
from kbench.benchmark import program as program_lib

STEP = 'global_step'
STEPS_SEEN, IMAGES_SEEN = 'batches_seen', 'images_seen'
SEED, PARTS = 'data_seed', 'data_parts'
# What a checkpoint holds besides variables.
NUMBERS = (STEPS_SEEN, IMAGES_SEEN, SEED, PARTS)


class Training:
    """The variables of a training and what may be done with them.

    Args:
        program: the objects of the run.

    Attributes:
        program: the objects of the run.
        state: weights, other states and step.
        schedule: rate by step.
        optimizer, loss_scale: of the run.
        averages: moving averages of the weights, or None.
        steps_seen: steps done since the training began, skipped ones and
            those that a recovery undid included.
        images_seen: images of these steps: the position in the data.
        stopped: why the training ended early, None where it did not.
        recoveries: how often it went back after a loss that is not finite.
    """

    def __init__(self, program: program_lib.Program):
        params, model = program.params, program.model
        self.program = program
        self.schedule = plan.create_schedule(program)
        self.steps_seen = 0
        self.images_seen = 0
        self.recoveries = 0
        self._snapshot = None
        self.stopped: str | None = None
        with program.replicas.scope():
            self.state = train.TrainState(
                weights=shards.expand(model.trainable_weights),
                states=shards.expand(model.non_trainable_weights),
                step=tf.Variable(
                    0,
                    trainable=False,
                    dtype=tf.int64,
                    name=STEP,
                    aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
                ),
            )
            self.optimizer = optimizers.create(
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
            self.loss_scale = precision.LossScale(
                program_lib.loss_scale(program),
                dynamic=params.fp16_enable_auto_loss_scale,
                growth_steps=params.fp16_inc_loss_scale_every_n,
                can_overflow=program.precision.can_overflow
                or params.fp16_compress_gradients,
            )
            self.averages = None
            if params.moving_average_decay is not None:
                self.averages = averages.MovingAverages(
                    params.moving_average_decay,
                    {one.path: one for one in shards.expand(model.weights)},
                )

    def make_step(self, observe=None):
        """Makes the train step of this run.

        Args:
            observe: as `train.make_train_step` has it.
        """
        program, params = self.program, self.program.params
        in_loss = not program_lib.decays_weights(params)
        compute = train.make_compute(
            program_lib.make_forward(program, training=True),
            losses.make_classification_loss(
                label_smoothing=params.label_smoothing,
                aux_loss_weight=program.spec.aux_loss_weight,
            ),
            prepare=data_lib.make_prepare(program),
            accuracy=params.print_training_accuracy
            or summarizing.is_on(params),
            num_micro_batches=params.num_grad_accumulation,
            xla=params.xla,
        )
        apply = train.make_apply(
            state=self.state,
            optimizer=self.optimizer,
            schedule=self.schedule,
            averages=self.averages,
            clip=gradients.make_clip(
                params.gradient_clip, params.gradient_clip_norm
            ),
        )
        return train.make_train_step(
            replicas=program.replicas,
            compute=compute,
            state=self.state,
            loss_scale=self.loss_scale,
            apply=apply,
            l2=losses.L2(
                params.weight_decay if in_loss else 0.0, program.decayed
            ),
            compress_gradients=params.fp16_compress_gradients,
            observe=observe,
        )

    def learning_rate(self) -> float:
        """Rate of the next update."""
        return float(self.schedule(tf.constant(self.step(), tf.int64)))

    def step(self) -> int:
        """Updates done."""
        return int(self.state.step.numpy())

    def skipped_steps(self) -> int:
        """Updates left out for overflow since the training began."""
        return self.loss_scale.skipped_steps()

    def saw_step(self) -> None:
        """Counts a step that is done."""
        self.steps_seen += 1
        self.images_seen += self.program.global_batch_size

    def position(self) -> int:
        """Where in the data the next step begins, in steps of this run."""
        return self.images_seen // images_per_round(self.program)

    def variables(self) -> dict[str, Any]:
        """What a checkpoint holds, but the loss scale, by name."""
        named = {weight.path: weight for weight in self.program.model.weights}
        named |= self.optimizer.slots | {STEP: self.state.step}
        if self.averages is not None:
            named |= self.averages.variables
        return shards.merge(named, self.program.model.weights)

    def take(self) -> dict[str, Any]:
        """Copies everything that a checkpoint holds.

        Returns:
            Tensor or number by name; later steps do not change them.
        """
        if self._snapshot is None:
            self._snapshot = checkpoints.make_snapshot(
                self.variables() | self.loss_scale.variables
            )
        program = self.program
        numbers = (
            self.steps_seen,
            self.images_seen,
            program.params.tf_random_seed,
            program.replicas.num_workers,
        )
        return self._snapshot() | {
            name: np.int64(value)
            for name, value in zip(NUMBERS, numbers, strict=True)
        }


def images_per_round(program: program_lib.Program) -> int:
    """Images of one step of every replica of the job.

    With asynchronous workers that are several updates.
    """
    return program.per_replica_step_size * program.replicas.total_replicas
