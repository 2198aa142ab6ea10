"""What an evaluation leaves in its folder: JSON, events, the best one."""

import dataclasses
import json
import logging
import os
import time
from typing import Any

from kbench import checkpoints, errors, evaluate, files, summaries
from kbench import params as params_lib

_log = logging.getLogger('kbench')

BEST = 'best.json'
# Folder with a copy of the best checkpoint: the training may remove its own.
BEST_FOLDER = 'best'


def folder(params: params_lib.Params) -> str | None:
    """Where evaluations are written; None: nowhere."""
    if params.eval_dir is not None:
        return params.eval_dir
    return os.path.join(params.train_dir, 'eval') if params.train_dir else None


def scalars(found: evaluate.Evaluation) -> dict[str, float]:
    """What TensorBoard shows of an evaluation."""
    return {
        'evaluation/top_1': found.top_1,
        'evaluation/top_5': found.top_5,
        'evaluation/loss': found.loss,
        'evaluation/images_per_sec': found.images_per_sec,
    }


def modified_at(path: str) -> float | None:
    """When a checkpoint was written; None: it is gone."""
    try:
        return os.path.getmtime(f'{path}.index')
    except OSError:
        return None


def _read(path: str) -> dict[str, Any]:
    try:
        with open(path, encoding='utf-8') as file:
            found = json.load(file)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _rank(entry):
    """Orders evaluations: the more right the better, then the surer."""
    return (entry['top_1'], -entry['loss'])


class Store:
    """The results of the checkpoints of one training.

    Args:
        params: of the evaluation.

    Raises:
        UserError: the folder cannot be written.
    """

    def __init__(self, params: params_lib.Params):
        self.directory = folder(params)
        self._averaged = params.moving_average_decay is not None
        try:
            os.makedirs(self.directory, exist_ok=True)
        except OSError as error:
            raise errors.UserError(
                f'--eval_dir={self.directory} cannot be written: '
                f'{error.strerror}'
            ) from None
        self._writer = summaries.Writer(self.directory)

    def _file(self, path):
        return os.path.join(self.directory, f'{os.path.basename(path)}.json')

    def has(self, path: str) -> bool:
        """Whether this very checkpoint was evaluated, here or earlier."""
        modified = modified_at(path)
        entry = _read(self._file(path))
        return modified is not None and entry.get('modified') == modified

    def best(self) -> dict[str, Any] | None:
        """The entry of the best checkpoint so far."""
        return _read(os.path.join(self.directory, BEST)) or None

    def add(
        self,
        path: str,
        step: int,
        modified: float | None,
        found: evaluate.Evaluation,
    ) -> None:
        """Writes the result of a checkpoint.

        Args:
            path: the checkpoint.
            step: of it.
            modified: when it was written, before it was read.
            found: the result.
        """
        entry = {
            'checkpoint': path,
            'step': step,
            'modified': modified,
            'evaluated': time.time(),
            'moving_averages': self._averaged,
            **dataclasses.asdict(found),
        }
        self._writer.scalars(step, scalars(found))
        self._writer.flush()
        best = self.best()
        if best is None or _rank(entry) > _rank(best):
            self._write(BEST, entry | {'copy': self._copy(path, step)})
        # Last: what has this file is not evaluated again.
        self._write(os.path.basename(self._file(path)), entry)

    def _copy(self, path, step):
        """Copies the best; returns where, None where it is gone."""
        copied = os.path.join(self.directory, BEST_FOLDER)
        try:
            values = checkpoints.load(path)
            os.makedirs(copied, exist_ok=True)
            for old in checkpoints.all_steps(copied):
                checkpoints.remove(checkpoints.path_of(copied, old))
            return checkpoints.save(copied, step, values, keep=1)
        except (OSError, checkpoints.CheckpointError) as error:
            _log.warning('the best checkpoint is not copied: %s', error)
            return None

    def _write(self, name, entry):
        path = os.path.join(self.directory, name)
        text = json.dumps(entry, indent=2) + '\n'
        try:
            files.replace(path, text.encode())
        except OSError as error:
            raise errors.UserError(
                f'--eval_dir={self.directory} cannot be written: '
                f'{error.strerror}'
            ) from None

    def close(self) -> None:
        """Waits until all is written."""
        self._writer.close()
