"""Evaluation: sums over all images, one division at the end."""

import dataclasses
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from kbench import losses, metrics


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """What an evaluation found.

    Attributes:
        num_images: images that were counted, each once.
        top_1: share of images whose label had the highest logit, 0 to 1.
        top_5: share whose label was among the five highest.
        loss: mean cross entropy, without label smoothing and L2.
        images_per_sec: rate from the first batch to the last result.
    """

    num_images: int
    top_1: float
    top_5: float
    loss: float
    images_per_sec: float


class Infer:
    """Inference of one replica.

    Args:
        forward: from `train.make_forward`, not in training.
        prepare: images and labels as they come to what the model takes.
        weights: trainable variables, or what stands for them.
        states: the other weights, likewise.
    """

    def __init__(
        self,
        forward: Callable,
        prepare: Callable,
        weights: Sequence[Any],
        states: Sequence[Any],
    ):
        self._forward, self._prepare = forward, prepare
        self._weights, self._states = list(weights), list(states)

    def read(self) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """The present values of weights and states."""
        return (
            [tf.convert_to_tensor(one) for one in self._weights],
            [tf.convert_to_tensor(one) for one in self._states],
        )

    def __call__(
        self, images: tf.Tensor, labels: tf.Tensor, values: Any = None
    ) -> tuple[list[tf.Tensor], tf.Tensor]:
        """Returns the model's outputs, and the labels.

        Args:
            images, labels: as they come.
            values: from `read`, or None to read them here.
        """
        images, labels = self._prepare(images, labels)
        weights, states = self.read() if values is None else values
        outputs, _ = self._forward(
            weights, states, images, step=None, replica=None
        )
        return outputs, labels


def make_eval_step(
    replicas: Any, infer: Callable
) -> Callable[[tuple], tf.Tensor]:
    """Makes one step of evaluation over all replicas.

    Args:
        replicas: a `strategies.Replicas`.
        infer: an `Infer`.

    Returns:
        A tf.function of (images, labels, counts) per replica to float32
        sums [images, right in 1, right in 5, cross entropy]; `counts` is 1
        for an image and 0 for padding.
    """

    def replica_step(images, labels, counts):
        outputs, labels = infer(images, labels)
        logits = outputs[0]
        columns = [
            tf.ones_like(counts),
            metrics.top_k(logits, labels, 1),
            metrics.top_k(logits, labels, 5),
            losses.softmax_cross_entropy(logits, labels),
        ]
        # `where`, since padding may give NaN, which times zero stays NaN.
        return tf.reduce_sum(
            tf.where(counts > 0, tf.stack(columns), 0.0), axis=1
        )

    @tf.function(autograph=False)
    def eval_step(batch):
        return replicas.sum(replicas.run(replica_step, batch))

    return eval_step


def make_forward_step(
    replicas: Any, infer: Callable, measure: Callable
) -> Callable[[tuple], tf.Tensor]:
    """Makes a step that only infers, for benchmarks of inference.

    Args:
        replicas: a `strategies.Replicas`.
        infer: an `Infer`.
        measure: outputs and labels to a float32 vector.

    Returns:
        A tf.function of (images, labels) per replica to the mean over the
        replicas of what `measure` gives.
    """

    def work(values, batch):
        return measure(*infer(*batch, values)) / replicas.num_replicas

    return replicas.make_sum_step(infer.read, work)


def run(
    step: Callable[[tuple], tf.Tensor],
    batches: Iterable[tuple],
    on_step: Callable[[int], None] = lambda num_images: None,
) -> Evaluation:
    """Runs an evaluation.

    Args:
        step: from `make_eval_step`.
        batches: (images, labels, counts) per replica.
        on_step: told how many images are done.

    Raises:
        ValueError: no image at all.
    """
    start = time.perf_counter()
    # Sums of float32 steps add up in float64: they are counts of images.
    sums = np.zeros(4, np.float64)
    for batch in batches:
        sums += step(batch).numpy()
        on_step(int(sums[0]))
    elapsed = time.perf_counter() - start
    if sums[0] == 0:
        raise ValueError('evaluation found no image')
    count, top_1, top_5, loss = sums.tolist()
    return Evaluation(
        num_images=round(count),
        top_1=top_1 / count,
        top_5=top_5 / count,
        loss=loss / count,
        images_per_sec=count / elapsed,
    )
