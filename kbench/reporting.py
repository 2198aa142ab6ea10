"""What a run says, and where: the only module that prints.

Standard output carries what scripts parse, in the words of tf_cnn_benchmarks;
everything else goes to standard error.
"""

import contextlib
import logging
import sys
from collections.abc import Iterator, Sequence

from kbench import throughput

RULE = '-' * 64


_muted = False


def mute() -> None:
    """Leaves standard output to another process of the job."""
    global _muted
    _muted = True


def out(text: str) -> None:
    """One line or more to standard output, at once."""
    if not _muted:
        print(text, flush=True)


def to_standard_error(text: str) -> None:
    """One line or more to standard error, as it is."""
    print(text, file=sys.stderr, flush=True)


def notice(text: str) -> None:
    """One line to standard error."""
    to_standard_error(f'kbench: {text}')


def error(text: str) -> None:
    """Why the run ends, one line to standard error."""
    notice(f'error: {" ".join(str(text).split())}')


class _NoticeHandler(logging.Handler):
    def emit(self, record):
        notice(record.getMessage())


def route_logging() -> None:
    """Sends the package's log records to standard error as notices."""
    logger = logging.getLogger('kbench')
    if not logger.handlers:
        logger.addHandler(_NoticeHandler())
        logger.setLevel(logging.INFO)
        logger.propagate = False


def header(rows: Sequence[tuple[str, str]]) -> str:
    """The block before a run.

    Args:
        rows: title and text; a text of several lines continues under itself.
    """
    lines = []
    for title, text in rows:
        first, *more = text.split('\n')
        lines.append(f'{title + ": ":<13}{first}')
        lines += [' ' * 13 + line for line in more]
    return '\n'.join([*lines, '=========='])


def table_head(accuracy: bool) -> str:
    """The line above the step lines."""
    head = 'Step\tImg/sec\ttotal_loss'
    return head + ('\ttop_1_accuracy\ttop_5_accuracy' if accuracy else '')


def step_line(
    step: int,
    speed: throughput.Throughput,
    loss: float,
    accuracies: Sequence[float] = (),
) -> str:
    """One line of progress."""
    columns = [
        f'{step}',
        f'images/sec: {speed.mean:.1f} +/- {speed.standard_error:.1f} '
        f'(jitter = {speed.jitter:.1f})',
        f'{loss:.3f}',
        *(f'{value:.3f}' for value in accuracies),
    ]
    return '\t'.join(columns)


def total_lines(images_per_sec: float) -> str:
    """The three lines at the end of a run."""
    return '\n'.join([RULE, f'total images/sec: {images_per_sec:.2f}', RULE])


def evaluation_line(
    top_1: float, top_5: float, num_images: int, loss: float
) -> str:
    """The result of an evaluation."""
    return (
        f'Accuracy @ 1 = {top_1:.4f} Accuracy @ 5 = {top_5:.4f} '
        f'[{num_images} examples] loss = {loss:.4f}'
    )


class Progress:
    """Shows that something long goes on, on a terminal only.

    Elsewhere nothing is shown but the name of each stage, one line.
    """

    def __init__(self):
        self._live = sys.stderr.isatty()

    @contextlib.contextmanager
    def stage(self, name: str, total: int | None = None) -> Iterator['_Stage']:
        """Shows a stage while it lasts.

        Args:
            name: what is being done.
            total: how many parts it has, None where that is unknown.

        Yields:
            An object whose `advance()` tells that a part is done.
        """
        if not self._live or total == 0:
            if total != 0:
                notice(name)
            yield _Stage()
            return
        # rich is imported late: it is not needed where nobody watches.
        import rich.console
        import rich.progress

        with rich.progress.Progress(
            rich.progress.TextColumn('{task.description}'),
            rich.progress.BarColumn(),
            rich.progress.MofNCompleteColumn(),
            rich.progress.TimeElapsedColumn(),
            rich.progress.TimeRemainingColumn(),
            console=rich.console.Console(stderr=True),
            transient=True,
            # Lines for standard output go around the bar on a terminal, and
            # stay what they are in a pipe.
            redirect_stdout=sys.stdout.isatty(),
        ) as bar:
            yield _Stage(bar, bar.add_task(name, total=total))


class _Stage:
    def __init__(self, bar=None, task=None):
        self._bar = bar
        self._task = task

    def advance(self, parts: int = 1) -> None:
        """Tells that so many parts more are done."""
        if self._bar is not None:
            self._bar.advance(self._task, parts)
