"""Which values, and which combinations of them, a run can work with.

Everything here needs neither TensorFlow nor the machine: what depends on the
devices or the data is checked where they become known.
"""

import difflib
import math
import re
from typing import Any

from kbench import errors
from kbench.params import modes, outputs, restores, table


class ParamsError(errors.UserError):
    """A parameter that cannot be; its text is one line for the user."""


def shown(name: str) -> str:
    """The parameter as the user writes it, for messages."""
    return f'--{name}'


def unknown(name: str) -> ParamsError:
    """The error for a name that is not in the table."""
    names = [*table.TABLE, *table.ALIASES]
    close = difflib.get_close_matches(name, names, n=1)
    hint = f'; did you mean {shown(close[0])}?' if close else ''
    return ParamsError(f'unknown parameter {shown(name)}{hint}')


def _range_text(row: table.Param) -> str:
    low, high = row.minimum, row.maximum
    if high is not None and low is not None:
        text = f'from {low:g} to {high:g}'
    elif low is not None:
        text = f'above {low:g}' if row.exclusive else f'{low:g} or more'
    else:
        text = 'finite'
    return f'{"a whole number" if row.type == "int" else "a number"}, {text}'


def legal_text(row: table.Param) -> str:
    """What a user may write for this parameter, in words."""
    if row.choices:
        return 'one of ' + ', '.join(repr(choice) for choice in row.choices)
    if row.type == 'bool':
        return 'true or false'
    if row.type == 'string':
        return 'a string'
    return _range_text(row)


def _in_range(row: table.Param, value: float) -> bool:
    if not math.isfinite(value):
        return False
    if row.minimum is not None and (
        value < row.minimum or (row.exclusive and value == row.minimum)
    ):
        return False
    return row.maximum is None or value <= row.maximum


def check_value(row: table.Param, value: Any) -> Any:
    """Returns the value in its own type.

    An empty string is None where that is the default: scripts of the original
    write `--trace_file=` for no trace.

    Raises:
        ParamsError: wrong type or outside of the range.
    """
    error = ParamsError(
        f'{shown(row.name)}={value!r} is not legal: it takes {legal_text(row)}'
    )
    wanted = row.python_type
    is_unset = value is None or (wanted is str and value == '')
    if row.default is None and is_unset:
        return None
    if value is None:
        raise error
    if wanted is float and isinstance(value, int):
        value = value if isinstance(value, bool) else float(value)
    if type(value) is not wanted:
        raise error
    if row.choices and value not in row.choices:
        raise error
    if wanted in (int, float) and not _in_range(row, value):
        raise error
    return value


def _decay_is_complete(p: Any) -> str | None:
    if (p.num_epochs_per_decay > 0) != (p.learning_rate_decay_factor > 0):
        return (
            '--num_epochs_per_decay and --learning_rate_decay_factor are '
            'set together or not at all'
        )
    if p.num_epochs_per_decay > 0 and p.learning_rate is None:
        return '--num_epochs_per_decay needs --learning_rate'
    if p.minimum_learning_rate > 0 and not (
        p.num_epochs_per_decay > 0 or p.learning_rate_schedule == 'cosine'
    ):
        return (
            f'--minimum_learning_rate={p.minimum_learning_rate} needs '
            '--learning_rate, --num_epochs_per_decay and '
            '--learning_rate_decay_factor, or --learning_rate_schedule=cosine'
        )
    if (
        p.learning_rate is not None
        and p.minimum_learning_rate > p.learning_rate
    ):
        return (
            f'--minimum_learning_rate={p.minimum_learning_rate} is above '
            f'--learning_rate={p.learning_rate}'
        )
    if p.num_learning_rate_warmup_epochs > 0 and not (
        p.learning_rate is not None
        or p.piecewise_learning_rate_schedule is not None
        or p.learning_rate_schedule is not None
    ):
        return (
            '--num_learning_rate_warmup_epochs='
            f'{p.num_learning_rate_warmup_epochs} needs --learning_rate, '
            '--piecewise_learning_rate_schedule or --learning_rate_schedule: '
            "a model's own schedule has its own warm-up"
        )
    return None


def parse_piecewise(text: str) -> tuple[list[float], list[float]]:
    """Splits `lr0;epoch1;lr1;...` into boundaries in epochs and rates.

    Raises:
        ParamsError: not of that form, or epochs that do not rise.
    """
    error = ParamsError(
        f'--piecewise_learning_rate_schedule={text!r} is not legal: it takes '
        'lr0;epoch1;lr1;... with rising epochs and rates of 0 or more'
    )
    try:
        numbers = [float(part) for part in text.split(';')]
    except ValueError:
        raise error from None
    rates, epochs = numbers[0::2], numbers[1::2]
    if len(rates) != len(epochs) + 1 or not all(map(math.isfinite, numbers)):
        raise error
    rising = all(a < b for a, b in zip([0.0, *epochs], epochs, strict=False))
    if not rising or min(rates) < 0:
        raise error
    return epochs, rates


def _schedules_exclude_each_other(p: Any) -> str | None:
    if p.piecewise_learning_rate_schedule is not None:
        parse_piecewise(p.piecewise_learning_rate_schedule)
    chosen = [
        name
        for name, is_set in (
            (
                'piecewise_learning_rate_schedule',
                p.piecewise_learning_rate_schedule is not None,
            ),
            ('num_epochs_per_decay', p.num_epochs_per_decay > 0),
            ('learning_rate_schedule', p.learning_rate_schedule is not None),
        )
        if is_set
    ]
    if len(chosen) > 1:
        return f'{shown(chosen[0])} and {shown(chosen[1])} exclude each other'
    if (
        p.piecewise_learning_rate_schedule is not None
        and p.learning_rate is not None
    ):
        return (
            '--piecewise_learning_rate_schedule and --learning_rate exclude '
            'each other'
        )
    return None


def _precision_is_one(p: Any) -> str | None:
    if p.use_fp16 and p.compute_dtype not in (None, 'float16'):
        return f'--use_fp16 contradicts --compute_dtype={p.compute_dtype}'
    is_fp16 = p.use_fp16 or p.compute_dtype == 'float16'
    if p.fp16_vars and not is_fp16:
        return '--fp16_vars=True needs --use_fp16'
    # Gradients that travel in float16 may overflow in any compute type.
    if is_fp16 or p.fp16_compress_gradients:
        return None
    for name, is_set in (
        ('fp16_enable_auto_loss_scale', p.fp16_enable_auto_loss_scale),
        ('fp16_loss_scale', p.fp16_loss_scale is not None),
    ):
        if is_set:
            return f'{shown(name)}={getattr(p, name)} needs --use_fp16'
    return None


def _float16_suffices(p: Any) -> str | None:
    # Squares of gradients are below 6e-8, the smallest float16.
    if p.fp16_vars and p.optimizer in ('adam', 'adamw', 'lamb'):
        return (
            f'--fp16_vars does not work with --optimizer={p.optimizer}: its '
            'mean squares vanish in float16; legal are sgd, momentum, '
            'rmsprop and lars'
        )
    if p.fp16_compress_gradients and p.variable_update == 'independent':
        return (
            '--fp16_compress_gradients contradicts '
            '--variable_update=independent, where no gradient travels'
        )
    return None


def _devices_are_possible(p: Any) -> str | None:
    if p.device == 'cpu' and p.data_format == 'NCHW':
        return (
            '--data_format=NCHW does not run on --device=cpu: NHWC is the '
            'only layout there'
        )
    if not p.gpu_indices:
        return None
    parts = p.gpu_indices.split(',')
    if not all(part.strip().isdigit() for part in parts):
        return (
            f'--gpu_indices={p.gpu_indices!r} is not legal: it takes '
            'whole numbers, separated by commas'
        )
    if len(set(parts)) != len(parts) or len(parts) < p.num_gpus:
        return (
            f'--gpu_indices={p.gpu_indices!r} must name '
            f'--num_gpus={p.num_gpus} different GPUs'
        )
    if p.device == 'cpu':
        return '--gpu_indices contradicts --device=cpu'
    return None


def _length_is_one(p: Any) -> str | None:
    if p.num_epochs is not None and p.num_batches != 100:
        return (
            f'--num_batches={p.num_batches} and --num_epochs={p.num_epochs} '
            'exclude each other'
        )
    return None


def _mode_is_one(p: Any) -> str | None:
    chosen = modes.flags(p)
    if len(chosen) > 1:
        return f'{shown(chosen[0])} and {shown(chosen[1])} exclude each other'
    if p.forward_only and p.num_grad_accumulation > 1:
        return '--num_grad_accumulation needs training, not --forward_only'
    if p.gradient_clip is not None and p.gradient_clip_norm is not None:
        return '--gradient_clip and --gradient_clip_norm exclude each other'
    return None


def _all_reduce_has_a_place(p: Any) -> str | None:
    if (
        p.all_reduce_spec is not None
        and p.variable_update not in table.ALL_REDUCE
    ):
        return (
            f'--all_reduce_spec={p.all_reduce_spec} does nothing with '
            f'--variable_update={p.variable_update}: it is for replicated '
            'and distributed_all_reduce'
        )
    return None


_SIZES = re.compile(r'[1-9]\d*[kKmM]?(,[1-9]\d*[kKmM]?)*$')


def _all_reduce_can_be_measured(p: Any) -> str | None:
    if p.all_reduce_sizes:
        if not p.benchmark_all_reduce:
            return '--all_reduce_sizes needs --benchmark_all_reduce'
        if not _SIZES.match(p.all_reduce_sizes):
            return (
                f'--all_reduce_sizes={p.all_reduce_sizes!r} is not legal: it '
                'takes bytes, separated by commas, such as 4k,1M'
            )
    if not p.benchmark_all_reduce:
        return None
    if p.variable_update not in table.ALL_REDUCE:
        return (
            f'--benchmark_all_reduce does not work with '
            f'--variable_update={p.variable_update}: legal are '
            f'{", ".join(table.ALL_REDUCE)}'
        )
    return None


def _cluster_flags_fit(p: Any) -> str | None:
    topologies = table.TOPOLOGIES[p.variable_update]
    if not p.cross_replica_sync and p.variable_update != 'parameter_server':
        return (
            '--cross_replica_sync=False needs '
            '--variable_update=parameter_server on a cluster'
        )
    if p.cluster and (p.job_name or p.worker_hosts or p.ps_hosts):
        return f'--cluster={p.cluster} and the host flags exclude each other'
    if p.ps_shard_bytes and p.optimizer in ('lars', 'lamb'):
        return (
            f'--ps_shard_bytes={p.ps_shard_bytes} does not work with '
            f'--optimizer={p.optimizer}, which needs norms of whole weights'
        )
    for name, value, needed in (
        ('slurm_ps', p.slurm_ps, bool(p.cluster)),
        ('ps_shard_bytes', p.ps_shard_bytes, 'servers' in topologies),
        ('bytes_per_pack', p.bytes_per_pack, 'peers' in topologies),
    ):
        if value and not needed:
            return (
                f'{shown(name)}={value} does nothing with '
                f'--variable_update={p.variable_update} and '
                f'--cluster={p.cluster!r}'
            )
    return None


# What can be made up when there is no folder, and what comes along.
SYNTHETIC = ('imagenet', 'cifar10', 'cifar100')
EMBEDDED = ('digits',)


def _data_has_a_source(p: Any) -> str | None:
    if p.data_dir is not None or p.data_name in EMBEDDED:
        return None
    if p.data_name is not None and p.data_name not in SYNTHETIC:
        return (
            f'--data_name={p.data_name} needs --data_dir; without it one of '
            f'{", ".join(SYNTHETIC)} (synthetic) or {", ".join(EMBEDDED)} is '
            'legal'
        )
    for name in ('cache_data', 'benchmark_input', 'skip_bad_images'):
        if getattr(p, name):
            return f'{shown(name)} needs real data: set --data_dir'
    return None


def _input_is_possible(p: Any) -> str | None:
    if p.skip_bad_images and p.data_service is not None:
        return (
            '--skip_bad_images and --data_service exclude each other: what '
            'the service skips cannot be counted here'
        )
    if p.download and p.data_dir is None:
        return '--download needs --data_dir, where the data goes'
    return None


_COMBINATIONS = (
    _all_reduce_has_a_place,
    _all_reduce_can_be_measured,
    _cluster_flags_fit,
    _mode_is_one,
    _length_is_one,
    _devices_are_possible,
    _precision_is_one,
    _float16_suffices,
    _decay_is_complete,
    _schedules_exclude_each_other,
    _data_has_a_source,
    _input_is_possible,
    *outputs.CHECKS,
    *restores.CHECKS,
)


def check_combination(params: Any) -> None:
    """Refuses parameters that are legal alone and not together.

    Raises:
        ParamsError: naming the parameters that contradict each other.
    """
    for check in _COMBINATIONS:
        text = check(params)
        if text:
            raise ParamsError(text)
