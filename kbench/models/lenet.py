"""LeNet-5 in the form of TensorFlow's MNIST tutorial."""

from kbench.models import layers
from kbench.models.spec import ModelSpec


def build(images, num_classes):
    """Two 5x5 convolutions with pools, one hidden layer of 512.

    Weights N(0, 0.1) and biases 0 and 0.1 are the tutorial's.
    """
    x = images
    for index, (filters, bias) in enumerate(((32, 0.0), (64, 0.1)), 1):
        x = layers.conv(
            x,
            filters,
            5,
            bias=bias,
            activation='relu',
            initializer=0.1,
            name=f'conv{index}',
        )
        x = layers.max_pool(x, 2, 2, name=f'pool{index}')
    x = layers.flatten(x)
    x = layers.dense(x, 512, name='dense1', initializer='he_normal', bias=0.1)
    return layers.logits(x, num_classes)


SPECS = (
    ModelSpec(
        'lenet',
        'imagenet',
        build,
        image_size=28,
        batch_size=32,
        learning_rate=0.005,
        parameters=2_172_840,
        macs=11_916_800 + 2_117_632,
        source='LeCun et al. 1998, as in the TensorFlow MNIST tutorial',
        aliases=('lenet5',),
    ),
)
