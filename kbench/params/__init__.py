"""The parameters of a run as one frozen value, checked once."""

import dataclasses
import json
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from kbench import files
from kbench.params import checks, outputs, table
from kbench.params.checks import ParamsError, parse_piecewise
from kbench.params.modes import mode

__all__ = [
    'Params',
    'ParamsError',
    'await_training',
    'environment',
    'inherit_for_eval',
    'is_real_data',
    'load_params',
    'make_params',
    'mode',
    'parse_piecewise',
    'save_params',
    'set_to_ignored',
    'written_folders',
]

FILE_NAME = 'parameters.json'

Params = dataclasses.make_dataclass(
    'Params',
    [
        (row.name, row.python_type, dataclasses.field(default=row.default))
        for row in table.TABLE.values()
    ],
    frozen=True,
    namespace={'__doc__': 'One run: a value for every row of the table.'},
)
Params.__module__ = __name__


def _canonical(values: Mapping[str, Any]) -> dict[str, Any]:
    named = {}
    for name, value in values.items():
        name = table.ALIASES.get(name, name)
        if name not in table.TABLE:
            raise checks.unknown(name)
        if name in named and named[name] != value:
            raise ParamsError(
                f'--{name} is set twice: {named[name]!r} and {value!r}'
            )
        named[name] = value
    return named


def make_params(**values: Any) -> Params:
    """Makes the parameters of a run; what is not given has its default.

    Args:
        **values: parameters by name, as in `kbench --help`.

    Returns:
        A frozen `Params`.

    Raises:
        ParamsError: unknown name, wrong type, value out of range, or a
            combination that cannot work. The message is one line.
    """
    named = {
        name: checks.check_value(table.TABLE[name], value)
        for name, value in _canonical(values).items()
    }
    params = Params(**named)
    checks.check_combination(params)
    return params


def environment(params: Params) -> dict[str, str]:
    """Environment variables that must hold before TensorFlow starts."""
    variables = {
        'TF_ENABLE_WINOGRAD_NONFUSED': str(int(params.winograd_nonfused)),
        'TF_SYNC_ON_FINISH': str(int(params.sync_on_finish)),
    }
    if params.autotune_threshold is not None:
        variables['TF_AUTOTUNE_THRESHOLD'] = str(params.autotune_threshold)
    if params.mkl:
        variables |= {
            'KMP_BLOCKTIME': str(params.kmp_blocktime),
            'KMP_AFFINITY': params.kmp_affinity,
            'KMP_SETTINGS': str(params.kmp_settings),
        }
        if params.num_intra_threads:
            variables['OMP_NUM_THREADS'] = str(params.num_intra_threads)
    return variables


def written_folders(params: Params) -> list[tuple[str, str]]:
    """Parameters that name what a run writes, and the folder of each."""
    found = []
    if params.train_dir is not None and not params.eval:
        found.append(('train_dir', params.train_dir))
    if params.export is not None:
        found.append(('export', params.export))
    for name in outputs.PROFILES:
        path = getattr(params, name)
        if path is None:
            continue
        is_folder = name == 'trace_file' and not path.endswith(
            ('.json', '.json.gz')
        )
        folder = path if is_folder else os.path.dirname(os.path.abspath(path))
        found.append((name, folder))
    return found


def is_real_data(params: Params) -> bool:
    """Whether the images come from files, or from the embedded digits."""
    return params.data_dir is not None or params.data_name == 'digits'


def set_to_ignored(params: Params) -> list[str]:
    """Names of ignored parameters that differ from their default."""
    return [
        row.name
        for row in table.TABLE.values()
        if row.kind == table.IGNORED
        and getattr(params, row.name) != row.default
    ]


def save_params(params: Params, directory: str) -> str:
    """Writes `parameters.json` into a folder, atomically.

    Returns:
        The path of the file.

    Raises:
        ParamsError: it cannot be written.
    """
    path = os.path.join(directory, FILE_NAME)
    text = json.dumps(dataclasses.asdict(params), indent=2, sort_keys=True)
    try:
        files.replace(path, f'{text}\n'.encode())
    except OSError as error:
        raise ParamsError(
            f'{path} cannot be written: {error.strerror}'
        ) from None
    return path


def _read(directory: str) -> dict[str, Any]:
    path = os.path.join(directory, FILE_NAME)
    try:
        with open(path, encoding='utf-8') as file:
            values = json.load(file)
    except OSError as error:
        raise ParamsError(f'{path}: {error.strerror}') from None
    except ValueError as error:
        raise ParamsError(f'{path} is not JSON: {error}') from None
    if not isinstance(values, dict):
        raise ParamsError(f'{path} must hold one JSON object of parameters')
    return values


def load_params(directory: str) -> Params:
    """Reads `parameters.json` from a folder and checks it as a new run.

    Raises:
        ParamsError: absent or unreadable file, or as `make_params`.
    """
    try:
        return make_params(**_read(directory))
    except ParamsError as error:
        path = os.path.join(directory, FILE_NAME)
        text = str(error)
        raise ParamsError(
            text if text.startswith(path) else f'{path}: {text}'
        ) from None


# What an evaluation takes from the training when it is not told.
_INHERITED = (
    'model',
    'data_dir',
    'data_name',
    'num_classes',
    'batch_size',
    'eval_method',
    'moving_average_decay',
    'use_fp16',
    'fp16_vars',
    'compute_dtype',
    'weight_decay',
    'weight_decay_all',
    'label_smoothing',
    'optimizer',
)


def await_training(
    values: Mapping[str, Any], tell: Callable[[str], None]
) -> None:
    """Waits until a training that is to be evaluated has begun.

    It knows the model; so an evaluator may be started before it.

    Args:
        values: what the user set, by name.
        tell: told in a line that this waits, if it does.
    """
    named = _canonical(values)
    directory, limit = named.get('train_dir'), named.get('eval_timeout_secs')
    follows = named.get('eval') and named.get('eval_interval_secs')
    if not follows or not isinstance(directory, str):
        return
    start, told = time.monotonic(), False
    while not _has_begun(directory):
        if isinstance(limit, int) and 0 < limit < time.monotonic() - start:
            return
        if not told:
            told = True
            tell(f'waiting for a training in {directory}')
        time.sleep(0.2)


def _has_begun(directory: str) -> bool:
    try:
        names = os.listdir(directory)
    except OSError:
        return False
    return FILE_NAME in names or any(n.endswith('.index') for n in names)


def inherit_for_eval(values: Mapping[str, Any]) -> dict[str, Any]:
    """Completes the values of an evaluation from those of the training.

    Args:
        values: what the user set, by name.

    Returns:
        The values, with model, data and numerics of
        `train_dir/parameters.json`, or of the one beside the checkpoint,
        where the user set none. Unchanged where
        the run is no evaluation or the folder holds no such file.
    """
    named = _canonical(values)
    directory = named.get('train_dir')
    if directory is None and isinstance(named.get('checkpoint'), str):
        path = named['checkpoint']
        directory = path if os.path.isdir(path) else os.path.dirname(path)
    if not named.get('eval') or not isinstance(directory, str):
        return named
    if not os.path.exists(os.path.join(directory, FILE_NAME)):
        return named
    trained = dataclasses.asdict(load_params(directory))
    if {'use_fp16', 'compute_dtype'} & set(named):
        for name in ('use_fp16', 'fp16_vars', 'compute_dtype'):
            trained.pop(name)
    return {
        name: trained[name] for name in _INHERITED if name in trained
    } | named
