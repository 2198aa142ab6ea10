"""Which combinations of what is saved and read can work."""

from collections.abc import Callable
from typing import Any


def _source_is_one(p: Any) -> str | None:
    if p.checkpoint is not None and p.init_checkpoint is not None:
        return (
            f'--checkpoint={p.checkpoint} and '
            f'--init_checkpoint={p.init_checkpoint} exclude each other'
        )
    if p.eval and p.init_checkpoint is not None:
        return '--init_checkpoint starts a training; --eval takes --checkpoint'
    if p.eval and p.train_dir is None and p.checkpoint is None:
        return (
            '--eval needs --train_dir, the folder with the checkpoint, or '
            '--checkpoint'
        )
    return None


def _scopes_are_two(p: Any) -> str | None:
    if p.ckpt_scope is not None and p.ckpt_scope.count(':') != 1:
        return (
            f'--ckpt_scope={p.ckpt_scope!r} is not legal: it takes old:new, '
            'two scopes with a colon between them'
        )
    return None


def _recovery_is_possible(p: Any) -> str | None:
    if not p.recover_on_nan:
        return None
    flag = f'--recover_on_nan={p.recover_on_nan}'
    if p.train_dir is None:
        return f'{flag} needs --train_dir, where the checkpoints are'
    if p.data_dir is None and p.data_name != 'digits':
        # What is done with the same images again ends as it did.
        return f'{flag} needs real data: synthetic batches are all the same'
    return None


CHECKS: tuple[Callable[[Any], str | None], ...] = (
    _source_is_one,
    _scopes_are_two,
    _recovery_is_possible,
)
