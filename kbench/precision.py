"""Number formats of a run, and the loss scale that float16 needs."""

import dataclasses

import tensorflow as tf

# float16 gradients times more than this overflow for any useful gradient.
MAX_LOSS_SCALE = 2.0**24

# Names of the variables that a loss scale may have.
STATE_NAMES = ('loss_scale', 'good_steps', 'skipped_steps')


@dataclasses.dataclass(frozen=True)
class Precision:
    """Which format computes and which holds the variables.

    Attributes:
        compute_dtype: `float32`, `bfloat16` or `float16`.
        variable_dtype: `float32`, or `float16` with float16 variables.
    """

    compute_dtype: str = 'float32'
    variable_dtype: str = 'float32'

    @property
    def policy(self) -> str:
        """Name of the Keras dtype policy."""
        if self.compute_dtype == self.variable_dtype:
            return self.compute_dtype
        return f'mixed_{self.compute_dtype}'

    @property
    def can_overflow(self) -> bool:
        """Whether finite weights may give infinite gradients."""
        return self.compute_dtype == 'float16'


class LossScale:
    """The factor that lifts small float16 gradients above zero.

    The loss is multiplied by `scale`, gradients are divided by it. Where
    gradients can overflow, a step whose mean gradients are not finite is
    skipped and counted. A dynamic scale is then halved, not below 1, and
    doubled after `growth_steps` good steps in a row, not above 2**24.

    Rule, with f = all mean gradients finite and n = good steps in a row:
        f:      n + 1 == growth_steps: scale * 2, n = 0; else n = n + 1
        not f:  scale / 2, n = 0, skipped + 1

    Args:
        initial: scale of the first step.
        dynamic: whether it changes.
        growth_steps: good steps before it doubles.
        can_overflow: whether finiteness is checked at all.

    Create it in the scope of the strategy.
    """

    def __init__(
        self,
        initial: float,
        *,
        dynamic: bool = False,
        growth_steps: int = 1000,
        can_overflow: bool = False,
    ):
        self.dynamic = dynamic
        self.can_overflow = can_overflow
        self._growth_steps = growth_steps
        self._initial = initial
        self.variables = {}
        if can_overflow:
            self.variables = {
                name: _variable(value, name)
                for name, value in zip(
                    STATE_NAMES, (initial, 0.0, 0.0), strict=True
                )
            }

    def value(self) -> tf.Tensor | None:
        """The scale of this step, float32 scalar; None where there is none."""
        if not self.can_overflow:
            return None
        if not self.dynamic:
            return tf.constant(self._initial, tf.float32)
        return tf.convert_to_tensor(self.variables['loss_scale'])

    def skipped_steps(self) -> int:
        """Steps skipped since the training began, on the first replica."""
        if not self.can_overflow:
            return 0
        return int(self.variables['skipped_steps'].numpy())

    def update(self, finite: tf.Tensor) -> None:
        """Counts a step and moves a dynamic scale.

        Args:
            finite: boolean scalar, whether the step's gradients were.
        """
        skipped = self.variables['skipped_steps']
        tf.raw_ops.AssignAddVariableOp(
            resource=skipped.handle, value=1.0 - tf.cast(finite, tf.float32)
        )
        if not self.dynamic:
            return
        scale = tf.convert_to_tensor(self.variables['loss_scale'])
        good = tf.convert_to_tensor(self.variables['good_steps']) + 1.0
        grow = good >= self._growth_steps
        bigger = tf.minimum(scale * 2.0, MAX_LOSS_SCALE)
        smaller = tf.maximum(scale / 2.0, 1.0)
        scale = tf.where(finite, tf.where(grow, bigger, scale), smaller)
        good = tf.where(tf.logical_and(finite, ~grow), good, 0.0)
        for name, value in (('loss_scale', scale), ('good_steps', good)):
            tf.raw_ops.AssignVariableOp(
                resource=self.variables[name].handle, value=value
            )


def _variable(value, name):
    # Each replica moves its own copy, all by the same rule on the same mean.
    return tf.Variable(
        value,
        trainable=False,
        dtype=tf.float32,
        name=name,
        aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
    )
