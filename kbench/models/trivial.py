"""The smallest model: what a step costs besides the model."""

from kbench.models import layers
from kbench.models.spec import ModelSpec


def build(images, num_classes):
    """One hidden unit, then 4096, from all pixels at once."""
    x = layers.flatten(images)
    x = layers.dense(x, 1, name='dense1', initializer='he_normal')
    x = layers.dense(x, 4096, name='dense2', initializer='he_normal')
    return layers.logits(x, num_classes)


_COMMON = {
    'builder': build,
    'batch_size': 32,
    'learning_rate': 0.005,
    'source': 'tf_cnn_benchmarks models/trivial_model.py',
}

SPECS = (
    ModelSpec(
        'trivial',
        'imagenet',
        image_size=227,
        parameters=4_259_780,
        macs=4_254_683,
        **_COMMON,
    ),
    ModelSpec(
        'trivial',
        'cifar10',
        image_size=32,
        parameters=52_235,
        macs=48_128,
        **_COMMON,
    ),
)
