"""The model table: names, rows, and the functions that build from them.

Looking a model up imports neither TensorFlow nor Keras: the module `layers`
runs when a builder first uses it.
"""

import difflib
import fnmatch
import importlib.util
import sys

from kbench import errors
from kbench.models.spec import ModelSpec
from kbench.models.table import format_table

__all__ = [
    'ModelSpec',
    'count_macs',
    'count_parameters',
    'create_model',
    'format_table',
    'get_spec',
    'keras_config',
    'list_specs',
    'seed_generators',
]


def _import_when_used(name):
    """Registers a submodule that executes on its first use."""
    spec = importlib.util.find_spec(f'{__name__}.{name}')
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


# Before the families, which import them.
layers = _import_when_used('layers')
applications = _import_when_used('applications')
build = _import_when_used('build')
counts = _import_when_used('counts')

from kbench.models import (  # noqa: E402
    alexnet,
    densenet,
    external,
    googlenet,
    inception,
    lenet,
    mobilenet,
    nasnet,
    overfeat,
    resnet,
    resnet_cifar,
    trivial,
    vgg,
)

_FAMILIES = (
    trivial,
    lenet,
    alexnet,
    overfeat,
    vgg,
    googlenet,
    inception,
    resnet,
    densenet,
    mobilenet,
    nasnet,
    resnet_cifar,
)


def _index():
    table = {}
    for family in _FAMILIES:
        for spec in family.SPECS:
            for name in (spec.name, *spec.aliases):
                rows = table.setdefault(name, {})
                if spec.dataset in rows:
                    raise AssertionError(f'two rows for {name}')
                rows[spec.dataset] = spec
    return table


_TABLE = _index()


def list_specs(pattern: str = '*') -> list[ModelSpec]:
    """The rows one of whose names matches a shell pattern, in table order."""
    return [
        spec
        for family in _FAMILIES
        for spec in family.SPECS
        if any(
            fnmatch.fnmatchcase(name, pattern)
            for name in (spec.name, *spec.aliases)
        )
    ]


def get_spec(name: str, dataset: str = 'imagenet') -> ModelSpec:
    """Looks a model up by its name or an alias.

    Args:
        name: a name of the table, `keras:<Name>` for a model of
            keras.applications, or `package.module:function` for a user's
            own builder (see `external.get_spec`).
        dataset: `imagenet` or `cifar10`: decides where both have the name.

    Returns:
        The row for the dataset, or the only row of that name.

    Raises:
        UserError: there is no such model; names the nearest ones.
    """
    if external.is_external(name):
        return external.get_spec(name)
    rows = _TABLE.get(name)
    if rows is None:
        near = difflib.get_close_matches(name, _TABLE, n=3, cutoff=0.5)
        hint = f'; did you mean {", ".join(near)}?' if near else ''
        raise errors.UserError(
            f'model: there is no model {name!r}{hint} '
            '(--list_models shows them all)'
        )
    return rows.get(dataset) or next(iter(rows.values()))


def keras_config(policy: str = 'float32', data_format: str = 'NHWC'):
    """Sets what Keras layers take; see `build.keras_config`."""
    return build.keras_config(policy, data_format)


def create_model(spec, num_classes: int, image_size: int | None = None):
    """Builds a model; see `build.create_model`."""
    return build.create_model(spec, num_classes, image_size)


def count_parameters(model, auxiliary: bool = False):
    """Trainable and total parameters; see `counts.count_parameters`."""
    return counts.count_parameters(model, auxiliary)


def count_macs(model, auxiliary: bool = False) -> int:
    """Multiply-adds of a forward pass; see `counts.count_macs`."""
    return counts.count_macs(model, auxiliary)


def seed_generators(model) -> list:
    """The random states of a model; see `build.seed_generators`."""
    return build.seed_generators(model)
