"""One row of the model table."""

import dataclasses
from collections.abc import Callable
from typing import Any


@dataclasses.dataclass(frozen=True)
class ModelSpec:
    """What kbench knows of a model before it builds it.

    Attributes:
        name: the name on the command line.
        dataset: `imagenet` or `cifar10`: whose images and classes the
            published model is for; real data may be anything.
        builder: `builder(images, num_classes)` takes the symbolic images
            and returns logits (batch, num_classes), or a pair of logits and
            a list of auxiliary logits that count in training only.
        image_size: height and width of the input in pixels.
        batch_size: default number of images per device.
        learning_rate: base rate of the model's own schedule.
        schedule: name of the model's own schedule in `kbench.schedules`.
        loss_scale: fixed loss scale of float16 training.
        aux_loss_weight: weight of each auxiliary loss in the total loss.
        parameters: trainable parameters with the dataset's own number of
            classes, auxiliary heads not counted.
        macs: multiply-adds of convolutions and dense layers in one forward
            pass of one image, auxiliary heads not counted.
        top_1: published top-1 accuracy in per cent, None where there is none.
        top_5: published top-5 accuracy in per cent, likewise.
        source: paper and table of the architecture; then of the accuracy.
        aliases: other names of the same network.
    """

    name: str
    dataset: str
    builder: Callable[..., Any]
    image_size: int
    batch_size: int
    learning_rate: float
    parameters: int
    macs: int
    source: str
    schedule: str = 'constant'
    loss_scale: float = 128.0
    aux_loss_weight: float = 0.4
    top_1: float | None = None
    top_5: float | None = None
    aliases: tuple[str, ...] = ()
