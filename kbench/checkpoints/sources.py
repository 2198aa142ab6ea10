"""Where weights come from: checkpoints of kbench and others, Keras files."""

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from kbench.checkpoints import files, keras_files, name_maps


@dataclasses.dataclass
class Source:
    """Something that weights were read from.

    Attributes:
        path: where.
        values: array by name; empty for a file of Keras.
        layers: arrays by layer, for a file of Keras alone.
        passed_over: newer checkpoints of the folder that are damaged.
    """

    path: str
    values: dict[str, np.ndarray]
    layers: dict[str, list[np.ndarray]] | None = None
    passed_over: Sequence[str] = ()

    @property
    def has_weights_only(self) -> bool:
        """Whether no training can go on from it."""
        return self.layers is not None or name_maps.is_original(
            list(self.values)
        )

    def named_for(
        self,
        weights: Mapping[str, Sequence[int]],
        model: str,
        data_format: str,
        tell: Callable[[str], None],
    ) -> dict[str, np.ndarray]:
        """The arrays under the names of a model of kbench.

        Args:
            weights: shape of the model's weights by name, in their order.
            model: name of the model in the table.
            data_format: of the original that wrote it, if one did.
            tell: told what the user should know, in lines.

        Raises:
            CheckpointError: it is not known what is what.
        """
        if self.layers is not None:
            note = keras_files.note(self.path, model)
            if note is not None:
                tell(note)
            return keras_files.to_names(self.path, self.layers, weights, model)
        if not self.has_weights_only:
            return self.values
        translated = name_maps.translate(
            self.path, self.values, weights, model, data_format
        )
        for line in translated.notes:
            tell(line)
        return translated.values


def read(path: str, tell: Callable[[str], None]) -> Source:
    """Reads a checkpoint, the newest of a folder, or a file of Keras.

    Args:
        path: folder, file of Keras, or path of a checkpoint with or without
            the ends of its files.
        tell: told of damaged checkpoints that are passed over, in lines.

    Raises:
        CheckpointError: there is nothing, or it is damaged.
    """
    if path.endswith(keras_files.ENDS):
        return Source(path, {}, keras_files.load(path))
    if os.path.isdir(path):
        newest = files.load_newest(path, tell)
        if newest is None:
            raise files.CheckpointError(f'{path} holds no checkpoint')
        return Source(*newest[:2], passed_over=newest[2])
    path = path.removesuffix('.index').partition('.data-')[0]
    if not os.path.exists(f'{path}.index'):
        raise files.CheckpointError(
            f'{path} is no checkpoint: there is no {path}.index, and it is '
            f'no folder and no {" or ".join(keras_files.ENDS)} file'
        )
    return Source(path, files.load(path))
