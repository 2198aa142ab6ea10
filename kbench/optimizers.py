"""Update rules, each with one fused op per variable where the runtime has one.

An optimizer updates the variables it was created for from gradients that are
already reduced over the replicas. It touches `variable.handle` only, so it
runs in a replica context, where that is the replica's own copy, and wherever
a copy is shared.
"""

import dataclasses
from collections.abc import Sequence

import keras
import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class Settings:
    """The numbers that the rules use; see each rule for its own.

    Attributes:
        momentum: of momentum and lars.
        rmsprop_decay: decay of the mean square.
        rmsprop_momentum: momentum of rmsprop.
        rmsprop_epsilon: inside the square root.
        weight_decay: decoupled decay of adamw, lars and lamb.
    """

    momentum: float = 0.9
    rmsprop_decay: float = 0.9
    rmsprop_momentum: float = 0.9
    rmsprop_epsilon: float = 1.0
    weight_decay: float = 0.0


class Optimizer:
    """Base of all rules: w is a weight, g its mean gradient, lr the rate.

    Args:
        variables: what is updated, Keras variables.
        settings: the numbers of the rule.
        decayed: whether weight decay applies, per variable.

    Create it in the scope of the strategy.

    Attributes:
        slots: name to variable of all that must be saved besides the weights.
    """

    # Slot name, as TensorFlow 1 called it, to the value it starts with.
    slot_names: dict[str, float] = {}
    # Whether the rule decays weights itself, which takes L2 out of the loss.
    decays_weights = False

    def __init__(
        self,
        variables: Sequence[keras.Variable],
        settings: Settings,
        decayed: Sequence[bool],
    ):
        self.settings = settings
        self.variables = list(variables)
        self.decayed = list(decayed)
        self.slots = {
            f'{variable.path}/{name}': _create_slot(variable, name, start)
            for variable in self.variables
            for name, start in self.slot_names.items()
        }

    def slot(self, variable: keras.Variable, name: str) -> tf.Variable:
        """The slot of this name that belongs to a variable."""
        return self.slots[f'{variable.path}/{name}']

    def update(
        self,
        gradients: Sequence[tf.Tensor],
        learning_rate: tf.Tensor,
        step: tf.Tensor,
    ) -> None:
        """Applies one update.

        Args:
            gradients: float32, one per variable.
            learning_rate: float32 scalar.
            step: updates done before this one, integer scalar.
        """
        for variable, gradient, decayed in zip(
            self.variables, gradients, self.decayed, strict=True
        ):
            dtype = variable.dtype
            self.apply(
                variable,
                tf.cast(gradient, dtype),
                tf.cast(learning_rate, dtype),
                step,
                decayed,
            )

    def apply(self, variable, gradient, learning_rate, step, decayed) -> None:
        """Applies one update to one variable, in the variable's dtype."""
        raise NotImplementedError


def _create_slot(variable, name, start):
    # A fused op takes a variable and its slots from one device.
    with tf.device(variable.value.device):
        return tf.Variable(
            lambda: tf.fill(variable.shape, tf.cast(start, variable.dtype)),
            trainable=False,
            name=f'{variable.path}/{name}',
            aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
        )


class SGD(Optimizer):
    """w -= lr * g."""

    def apply(self, variable, gradient, learning_rate, step, decayed):
        """One fused op."""
        tf.raw_ops.ResourceApplyGradientDescent(
            var=variable.handle, alpha=learning_rate, delta=gradient
        )


class Momentum(Optimizer):
    """Nesterov momentum: a = m * a + g; w -= lr * (g + m * a).

    Source: Sutskever et al. 2013 in the form of TensorFlow 1's
    MomentumOptimizer(use_nesterov=True), where the rate stands outside of
    the accumulator.
    """

    slot_names = {'Momentum': 0.0}

    def apply(self, variable, gradient, learning_rate, step, decayed):
        """One fused op."""
        tf.raw_ops.ResourceApplyMomentum(
            var=variable.handle,
            accum=self.slot(variable, 'Momentum').handle,
            lr=learning_rate,
            grad=gradient,
            momentum=tf.constant(self.settings.momentum, variable.dtype),
            use_nesterov=True,
        )


class RMSProp(Optimizer):
    """s = d * s + (1 - d) * g^2; a = m * a + lr * g / sqrt(s + eps); w -= a.

    Source: TensorFlow 1's RMSPropOptimizer: s starts at one, and epsilon is
    inside of the square root.
    """

    slot_names = {'RMSProp': 1.0, 'RMSProp_1': 0.0}

    def apply(self, variable, gradient, learning_rate, step, decayed):
        """One fused op."""
        settings, dtype = self.settings, variable.dtype
        tf.raw_ops.ResourceApplyRMSProp(
            var=variable.handle,
            ms=self.slot(variable, 'RMSProp').handle,
            mom=self.slot(variable, 'RMSProp_1').handle,
            lr=learning_rate,
            rho=tf.constant(settings.rmsprop_decay, dtype),
            momentum=tf.constant(settings.rmsprop_momentum, dtype),
            epsilon=tf.constant(settings.rmsprop_epsilon, dtype),
            grad=gradient,
        )


class Adam(Optimizer):
    """Kingma and Ba 2015, algorithm 1, in its "efficient" order.

    a = lr * sqrt(1 - b2^t) / (1 - b1^t); m = b1 * m + (1 - b1) * g;
    v = b2 * v + (1 - b2) * g^2; w -= a * m / (sqrt(v) + eps), with
    b1 = 0.9, b2 = 0.999, eps = 1e-7, the defaults of Keras.
    """

    slot_names = {'Adam': 0.0, 'Adam_1': 0.0}
    beta_1, beta_2, epsilon = 0.9, 0.999, 1e-7

    def apply(self, variable, gradient, learning_rate, step, decayed):
        """One fused op."""
        dtype = variable.dtype
        first, second = self.slot_names
        count = tf.cast(step + 1, tf.float32)
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=self.slot(variable, first).handle,
            v=self.slot(variable, second).handle,
            beta1_power=tf.cast(tf.pow(self.beta_1, count), dtype),
            beta2_power=tf.cast(tf.pow(self.beta_2, count), dtype),
            lr=learning_rate,
            beta1=tf.constant(self.beta_1, dtype),
            beta2=tf.constant(self.beta_2, dtype),
            epsilon=tf.constant(self.epsilon, dtype),
            grad=gradient,
        )


class AdamW(Adam):
    """Loshchilov and Hutter 2019: w -= lr * wd * w, then Adam."""

    # Names of its own: a checkpoint of adam must not pass for one of adamw.
    slot_names = {'AdamW': 0.0, 'AdamW_1': 0.0}
    decays_weights = True

    def apply(self, variable, gradient, learning_rate, step, decayed):
        """Two fused ops."""
        _decay(variable, learning_rate, self.settings.weight_decay, decayed)
        super().apply(variable, gradient, learning_rate, step, decayed)


def _decay(variable, learning_rate, weight_decay, decayed):
    if decayed and weight_decay:
        tf.raw_ops.ResourceApplyGradientDescent(
            var=variable.handle,
            alpha=learning_rate * tf.cast(weight_decay, variable.dtype),
            delta=tf.convert_to_tensor(variable),
        )


class LARS(Optimizer):
    """Layer-wise rates: You, Gitman and Ginsburg 2017, algorithm 1.

    r = eta * |w| / (|g| + wd * |w|), eta = 0.001; a = m * a + r * lr *
    (g + wd * w); w -= a. Where weight decay does not apply, or a norm is
    zero, r = 1 and wd = 0.
    """

    # Not Momentum's name: here the rate is inside of the accumulator.
    slot_names = {'LARS': 0.0}
    decays_weights = True
    eta = 0.001

    def apply(self, variable, gradient, learning_rate, step, decayed):
        """A fused momentum op on the scaled gradient."""
        dtype = variable.dtype
        rate = tf.cast(learning_rate, tf.float32)
        # Norms in float32: a sum of squares soon exceeds float16.
        gradient = tf.cast(gradient, tf.float32)
        if decayed:
            weight = tf.cast(variable, tf.float32)
            norm = tf.norm(weight)
            whole = tf.norm(gradient) + self.settings.weight_decay * norm
            ratio = tf.where(
                norm * whole > 0,
                self.eta * tf.math.divide_no_nan(norm, whole),
                1.0,
            )
            gradient = ratio * (gradient + self.settings.weight_decay * weight)
        # lr goes into the accumulator: fold it in and apply with rate one.
        tf.raw_ops.ResourceApplyMomentum(
            var=variable.handle,
            accum=self.slot(variable, 'LARS').handle,
            lr=tf.ones([], dtype),
            grad=tf.cast(rate * gradient, dtype),
            momentum=tf.constant(self.settings.momentum, dtype),
            use_nesterov=False,
        )


class _LocalLamb(keras.optimizers.Lamb):
    """The rule of Keras on this copy of the variables alone."""

    def assign(self, variable, value):
        tf.raw_ops.AssignVariableOp(
            resource=variable.handle, value=tf.cast(value, variable.dtype)
        )

    def assign_add(self, variable, value):
        tf.raw_ops.AssignAddVariableOp(
            resource=variable.handle, value=tf.cast(value, variable.dtype)
        )

    def assign_sub(self, variable, value):
        tf.raw_ops.AssignSubVariableOp(
            resource=variable.handle, value=tf.cast(value, variable.dtype)
        )


class Lamb(Optimizer):
    """You et al. 2020, by the rule of `keras.optimizers.Lamb`.

    The decay is decoupled, as Keras has it: w -= lr * wd * w comes first.
    """

    decays_weights = True

    def __init__(self, variables, settings, decayed):
        super().__init__(variables, settings, decayed)
        self._keras = _LocalLamb()
        self._keras.build(self.variables)
        self.slots = {
            f'{variable.path}/{name}': slot
            for name, slots in (
                ('Lamb', self._keras._momentums),
                ('Lamb_1', self._keras._velocities),
            )
            for variable, slot in zip(self.variables, slots, strict=True)
        }

    def apply(self, variable, gradient, learning_rate, step, decayed):
        """Keras's own update, at our step."""
        _decay(variable, learning_rate, self.settings.weight_decay, decayed)
        # Keras's own counter loses updates under asynchronous workers.
        counter = [(self._keras.iterations, step)]
        with keras.StatelessScope(state_mapping=counter):
            self._keras.update_step(gradient, variable, learning_rate)


OPTIMIZERS: dict[str, type[Optimizer]] = {
    'sgd': SGD,
    'momentum': Momentum,
    'rmsprop': RMSProp,
    'adam': Adam,
    'adamw': AdamW,
    'lars': LARS,
    'lamb': Lamb,
}


def create(
    name: str,
    variables: Sequence[keras.Variable],
    settings: Settings,
    decayed: Sequence[bool],
) -> Optimizer:
    """Creates the optimizer of this name, a key of `OPTIMIZERS`."""
    return OPTIMIZERS[name](variables, settings, decayed)
