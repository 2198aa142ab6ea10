"""What happens beside the steps of a training."""

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from kbench.benchmark import during, summarizing


class Beside(NamedTuple):
    """What a training does besides its steps.

    Attributes:
        summaries: what it writes for TensorBoard.
        evaluations: of the held-out images.
    """

    summaries: summarizing.Summaries
    evaluations: during.Evaluations


@contextlib.contextmanager
def opened(training: Any) -> Iterator[Beside]:
    """Does what the parameters ask for while it lasts."""
    evaluations = during.Evaluations(training)
    with (
        contextlib.closing(evaluations),
        summarizing.opened(training) as summaries,
    ):
        yield Beside(summaries, evaluations)
