"""Which combinations of what a run leaves behind can work."""

from collections.abc import Callable
from typing import Any


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
    for other in ('eval', 'benchmark_input'):
        for name in PROFILES:
            if getattr(p, other) and getattr(p, name) is not None:
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


CHECKS: tuple[Callable[[Any], str | None], ...] = (
    _record_has_a_place,
    _profiles_are_of_steps,
    _summaries_have_a_place,
)
