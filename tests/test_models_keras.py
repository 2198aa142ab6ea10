"""Same weights, same outputs as keras.applications.

Keras's models are an independent implementation. Biases and statistics are
random too, so that nothing hides.
"""

import functools
import re

import keras
import numpy as np
import pytest
import skimage.data
import tensorflow as tf

from kbench import models
from kbench.checkpoints import keras_files

_CLASSES = 7


def _densenet(name):
    name = re.sub(
        r'conv(\d)_block(\d+)_',
        lambda m: f'block{int(m[1]) - 1}_{m[2]}_',
        name,
    )
    name = re.sub(
        r'pool(\d)_(bn|conv)',
        lambda m: f'transition{int(m[1]) - 1}_{m[2]}',
        name,
    )
    renamed = {'conv1_conv': 'stem_conv', 'conv1_bn': 'stem_bn', 'bn': 'post'}
    return [renamed.get(name, name)]


_NASNET_ROWS = {
    'normal': {
        'left1': '1l',
        'right1': '1r',
        'left2': '2l',
        'right2': '2r',
        'left5': '5l',
    },
    'reduction': {
        'left1': '1l',
        'right1': '1r',
        'right2': '2r',
        'right3': '3r',
        'left4': '5l',
    },
}


def _nasnet_cell(identifier, blocks):
    if identifier.startswith('stem_'):
        return identifier.replace('stem_', 'stem_cell')
    if identifier.startswith('reduce_'):
        return f'reduction{int(identifier.removeprefix("reduce_")) // blocks}'
    number = int(identifier)
    return f'cell{number + 1 if number < blocks else number}'


def _nasnet(name, blocks):
    if name.startswith('stem_'):
        return [name.replace('1', '')]
    match = re.fullmatch(
        r'separable_conv_(\d)_(bn_)?(normal|reduction)_([a-z]+\d)_(\w+)', name
    )
    if match:
        index, norm, kind, row, identifier = match.groups()
        cell = _nasnet_cell(identifier, blocks)
        prefix = f'{cell}_{_NASNET_ROWS[kind][row]}_{index}'
        if norm:
            return [f'{prefix}_bn']
        return [f'{prefix}_depthwise', f'{prefix}_conv']
    match = re.fullmatch(
        r'(adjust|normal|reduction)_(conv|bn)(?:_(1|2|projection))?_(\w+)',
        name,
    )
    if match is None:
        return [name]
    part, kind, index, identifier = match.groups()
    cell = _nasnet_cell(identifier, blocks)
    if part != 'adjust':
        return [f'{cell}_input_{kind}']
    if kind == 'conv' and index in ('1', '2'):
        return [f'{cell}_adjust_{int(index) - 1}_conv']
    return [f'{cell}_adjust_{kind}']


def _numbers(name):
    return [int(number) for number in re.findall(r'\d+', name)]


def _inception_order(reference, ours):
    """Keras numbers the layers; ours sort by module, branch and step."""
    pairs = []
    for keras_kind, our_kind in (('conv2d', 'conv'), ('batch_', 'bn')):
        theirs = [
            layer.name
            for layer in reference.layers
            if layer.name.startswith(keras_kind)
        ]
        mine = [
            layer.name
            for layer in ours.layers
            if layer.weights
            and layer.name.endswith(our_kind)
            and not layer.name.startswith('aux')
        ]
        theirs.sort(key=_numbers)
        mine.sort(key=lambda n: (n.startswith('mixed'), _numbers(n)))
        pairs += zip(theirs, mine, strict=True)
    names = dict(pairs)
    return lambda name: [names.get(name, name)]


def _randomize(model, seed):
    """Gives every weight of a model that starts constant a random value."""
    random = np.random.default_rng(seed)
    for layer in model.layers:
        for weight in layer.weights:
            if weight.name in ('bias', 'beta', 'moving_mean'):
                value = random.normal(0, 0.1, weight.shape)
            elif weight.name in ('moving_variance', 'gamma'):
                value = random.uniform(0.5, 1.5, weight.shape)
            else:
                continue
            weight.assign(value)


def _copy_weights(reference, ours, rename):
    """Copies by name; where our convolution has no bias, the mean takes it.

    Returns the names of our variables that got no value.
    """
    left = {v.path for v in ours.weights if not v.path.startswith('aux')}
    carried = {}
    for layer in reference.layers:
        if not layer.weights:
            continue
        names = rename('logits' if layer.name == 'predictions' else layer.name)
        targets = [ours.get_layer(name) for name in names]
        variables = [v for target in targets for v in target.weights]
        values = [w.numpy() for w in layer.weights]
        if len(values) == len(variables) + 1:
            # A convolution with a bias in front of a batch norm.
            carried[names[0].replace('_conv', '_bn')] = values.pop()
        for variable, value in zip(variables, values, strict=True):
            if variable.name == 'moving_mean' and names[0] in carried:
                value = value - carried.pop(names[0])
            variable.assign(value.reshape(variable.shape))
            left.remove(variable.path)
    assert not carried
    return left


def _images(size):
    """Four random images and four photographs, in [-1, 1].

    Eight, so that no batch statistic rests on a handful of values.
    """
    random = np.random.default_rng(0).uniform(-1, 1, (4, size, size, 3))
    photos = [
        tf.image.resize(photo(), (size, size)) / 127.5 - 1
        for photo in (
            skimage.data.astronaut,
            skimage.data.chelsea,
            skimage.data.coffee,
            skimage.data.rocket,
        )
    ]
    return tf.concat([tf.cast(random, tf.float32), tf.stack(photos)], 0)


def _without_dropout(model):
    for layer in model.layers:
        if 'Dropout' in type(layer).__name__:
            layer.rate = 0.0


# Name here, name there, image size, how names translate: None is what
# kbench itself makes of the files of keras.applications.
_PAIRS = (
    ('vgg16', 'VGG16', 64, None),
    ('vgg19', 'VGG19', 64, None),
    ('resnet50', 'ResNet50', 64, None),
    ('resnet101', 'ResNet101', 96, None),
    ('resnet152', 'ResNet152', 96, None),
    ('resnet_v2_50', 'ResNet50V2', 64, None),
    ('resnet_v2_101', 'ResNet101V2', 96, None),
    ('resnet_v2_152', 'ResNet152V2', 96, None),
    ('inception3', 'InceptionV3', 139, None),
    ('mobilenet_v1_orig', 'MobileNet', 64, None),
    ('mobilenet', 'MobileNetV2', 64, None),
    ('nasnet', 'NASNetMobile', 64, lambda name: _nasnet(name, 4)),
    ('nasnetlarge', 'NASNetLarge', 64, lambda name: _nasnet(name, 6)),
    ('densenet121', 'DenseNet121', 64, _densenet),
)


# Here batch statistics amplify the rounding of float32 to more than 1e-4,
# in Keras's own model too; docs/models.md has what was measured.
_AGAINST_FLOAT64 = (
    'resnet101',
    'resnet152',
    'resnet_v2_152',
    'inception3',
    'mobilenet_v1_orig',
    'mobilenet',
)


def _logits(model, images, training):
    outputs = model(images, training=training)
    if isinstance(outputs, list):
        outputs = outputs[0]
    return tf.reshape(outputs, (-1, _CLASSES)).numpy()


def _in_float64(create, reference, images):
    """Logits of the same network and weights, trained in float64."""
    with models.keras_config('float64'):
        exact = create()
    _without_dropout(exact)
    for mine, theirs in zip(exact.weights, reference.weights, strict=True):
        mine.assign(tf.cast(theirs.value, tf.float64))
    logits = _logits(exact, tf.cast(images, tf.float64), training=True)
    assert logits.dtype == np.float64
    return logits


def _rms(errors):
    return np.sqrt(np.mean(np.square(errors)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ('name', 'keras_name', 'size', 'rename'),
    _PAIRS,
    ids=[pair[0] for pair in _PAIRS],
)
def test_equals_keras_applications(name, keras_name, size, rename):
    create = functools.partial(
        getattr(keras.applications, keras_name),
        weights=None,
        classes=_CLASSES,
        classifier_activation=None,
        input_shape=(size, size, 3),
    )
    reference = create()
    ours = models.create_model(models.get_spec(name), _CLASSES, size)
    _randomize(reference, seed=1)
    if name == 'inception3':
        rename = _inception_order(reference, ours)
    elif rename is None:

        def rename(layer):
            return [keras_files.layer_name(layer, name)]

    assert not _copy_weights(reference, ours, rename)
    _without_dropout(reference)
    _without_dropout(ours)
    images = _images(size)
    for training in (False, True):
        expected = _logits(reference, images, training)
        actual = _logits(ours, images, training)
        scale = max(1.0, np.abs(expected).max())
        assert np.isfinite(scale)
        if training and name in _AGAINST_FLOAT64:
            exact = _in_float64(create, reference, images)
            # The precision of float32, and not a wrong constant.
            assert _rms(expected - exact) < 1e-3 * scale
            assert _rms(actual - exact) < 2 * _rms(expected - exact)
        else:
            error = np.abs(actual - expected).max() / scale
            assert error < 1e-4, f'training={training}: {error}'
