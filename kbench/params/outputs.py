"""Which combinations of what a run leaves behind can work."""

from collections.abc import Callable
from typing import Any

from kbench.params import modes


def _record_has_a_place(p: Any) -> str | None:
    place = p.result_storage
    if place is None or '://' in place or place.endswith(('.json', '.jsonl')):
        return None
    legal = (
        'a path that ends in .json or .jsonl, or a database URL such as '
        'sqlite:///runs.db'
    )
    if place == 'cbuild_benchmark_datastore':
        return (
            f'--result_storage={place} was a store inside Google; what takes '
            f'its place is {legal}'
        )
    return f'--result_storage={place!r} is not legal: it takes {legal}'


# Files of a profile.
PROFILES = ('trace_file', 'tfprof_file', 'graph_file')


def _profiles_are_of_steps(p: Any) -> str | None:
    other = modes.excluded(p, 'forward_only')
    for name in PROFILES:
        if other and getattr(p, name) is not None:
            return (
                f'--{name} is of the steps of a training or of '
                f'--forward_only: it excludes --{other}'
            )
    return None


def _summaries_have_a_place(p: Any) -> str | None:
    wanted = p.summary_verbosity and p.save_summaries_steps
    if wanted and p.train_dir is None:
        return (
            f'--save_summaries_steps={p.save_summaries_steps} needs '
            '--train_dir, the folder of the summaries'
        )
    return None


_DURING = (
    'eval_during_training_every_n_steps',
    'eval_during_training_every_n_epochs',
)


def _evaluation_is_during_training(p: Any) -> str | None:
    during = [name for name in _DURING if getattr(p, name) is not None]
    if len(during) == 2:
        return f'--{during[0]} and --{during[1]} exclude each other'
    other = modes.excluded(p)
    if during and other:
        return f'--{during[0]} needs a training: it excludes --{other}'
    if during and p.data_dir is None and p.data_name != 'digits':
        return f'--{during[0]} needs real data: set --data_dir'
    if p.stop_at_top_1_accuracy is not None and not during:
        return (
            f'--stop_at_top_1_accuracy={p.stop_at_top_1_accuracy} needs '
            f'--{_DURING[0]} or --{_DURING[1]}'
        )
    if p.num_eval_batches is not None and not (during or p.eval):
        return (
            f'--num_eval_batches={p.num_eval_batches} needs --eval or '
            f'--{_DURING[0]}'
        )
    return None


def _evaluator_has_a_training(p: Any) -> str | None:
    flag = f'--eval_interval_secs={p.eval_interval_secs}'
    if p.eval_interval_secs and not p.eval:
        return f'{flag} needs --eval'
    if p.eval_interval_secs and p.checkpoint is not None:
        return f'{flag} and --checkpoint={p.checkpoint} exclude each other'
    if p.eval_interval_secs and p.train_dir is None:
        return f'{flag} needs --train_dir'
    if p.eval_timeout_secs and not p.eval_interval_secs:
        return (
            f'--eval_timeout_secs={p.eval_timeout_secs} needs '
            '--eval_interval_secs'
        )
    return None


def _export_has_weights(p: Any) -> str | None:
    other = modes.excluded(p, 'eval')
    if p.export is not None and other:
        return f'--export={p.export} excludes --{other}: nothing is trained'
    return None


CHECKS: tuple[Callable[[Any], str | None], ...] = (
    _record_has_a_place,
    _profiles_are_of_steps,
    _summaries_have_a_place,
    _evaluation_is_during_training,
    _evaluator_has_a_training,
    _export_has_weights,
)
