"""Models from elsewhere: keras.applications, and a user's own function.

Their rows are made when they are asked for; parameters and multiply-adds
are 0 in them, unknown before the model is built.
"""

import difflib
import functools
import importlib
import os
import sys

from kbench import errors
from kbench.models import applications
from kbench.models.spec import ModelSpec

KERAS_PREFIX = 'keras:'

# Size of the images, by name; what is missing takes 224.
_KERAS_SIZES = {
    'EfficientNetB1': 240,
    'EfficientNetB2': 260,
    'EfficientNetB3': 300,
    'EfficientNetB4': 380,
    'EfficientNetB5': 456,
    'EfficientNetB6': 528,
    'EfficientNetB7': 600,
    'EfficientNetV2B1': 240,
    'EfficientNetV2B2': 260,
    'EfficientNetV2B3': 300,
    'EfficientNetV2S': 384,
    'EfficientNetV2M': 480,
    'EfficientNetV2L': 480,
    'InceptionResNetV2': 299,
    'InceptionV3': 299,
    'NASNetLarge': 331,
    'Xception': 299,
}

# Checked here, so that a wrong name is refused before Keras is imported.
KERAS_NAMES = (
    *(
        f'ConvNeXt{size}'
        for size in ['Tiny', 'Small', 'Base', 'Large', 'XLarge']
    ),
    *(f'DenseNet{depth}' for depth in (121, 169, 201)),
    *(f'EfficientNetB{index}' for index in range(8)),
    *(f'EfficientNetV2B{index}' for index in range(4)),
    *(f'EfficientNetV2{size}' for size in 'SML'),
    'InceptionResNetV2',
    'InceptionV3',
    'MobileNet',
    'MobileNetV2',
    'MobileNetV3Large',
    'MobileNetV3Small',
    'NASNetLarge',
    'NASNetMobile',
    *(f'ResNet{depth}' for depth in (50, 101, 152)),
    *(f'ResNet{depth}V2' for depth in (50, 101, 152)),
    'VGG16',
    'VGG19',
    'Xception',
)


def is_external(name: str) -> bool:
    """Whether a model name speaks of a model outside the table."""
    return ':' in name


def get_spec(name: str) -> ModelSpec:
    """The row of a model outside the table.

    Args:
        name: `keras:<Name>`, a model of keras.applications, or
            `package.module:function`, where `function(images, num_classes)`
            takes symbolic images and returns logits, or logits and a list
            of auxiliary logits. It may carry the attributes `image_size`,
            `batch_size` and `learning_rate`.

    Raises:
        UserError: there is no such model, module or function.
    """
    if name.startswith(KERAS_PREFIX):
        return _keras_spec(name)
    return _function_spec(name)


def _keras_spec(name):
    inner = name.removeprefix(KERAS_PREFIX)
    if inner not in KERAS_NAMES:
        near = difflib.get_close_matches(inner, KERAS_NAMES, n=3, cutoff=0.4)
        hint = ', '.join(f'{KERAS_PREFIX}{n}' for n in near or KERAS_NAMES)
        raise errors.UserError(
            f'model: keras.applications has no {inner!r}; try {hint}'
        )
    return ModelSpec(
        name,
        'imagenet',
        functools.partial(_build_keras, name=inner),
        image_size=_KERAS_SIZES.get(inner, 224),
        batch_size=32,
        learning_rate=0.005,
        parameters=0,
        macs=0,
        source='keras.applications',
    )


def _build_keras(images, num_classes, name):
    return applications.build(images, num_classes, name)


def _import(module_name):
    """Imports a user's module, from the current folder too.

    `python -m kbench` has that folder on its path, the command `kbench`
    has not.
    """
    folder = os.getcwd()
    if not {'', folder} & set(sys.path):
        sys.path.insert(0, folder)
    return importlib.import_module(module_name)


def _function_spec(name):
    module_name, _, function_name = name.partition(':')
    try:
        module = _import(module_name)
    except Exception as error:
        raise errors.UserError(
            f'model: cannot import {module_name!r} of {name!r} ({error}); '
            'legal are a name of --list_models, keras:<Name>, and '
            'package.module:function with the module in the current folder or '
            'on PYTHONPATH'
        ) from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise errors.UserError(
            f'model: module {module_name!r} has no function {function_name!r}'
        )
    return ModelSpec(
        name,
        'imagenet',
        function,
        image_size=getattr(function, 'image_size', 224),
        batch_size=getattr(function, 'batch_size', 32),
        learning_rate=getattr(function, 'learning_rate', 0.005),
        parameters=0,
        macs=0,
        source=module_name,
    )
