"""What is known of a run while it goes on.

The record of a run is written from here, so that it says as much of a run
that failed as of one that did not.
"""

import dataclasses
import time
from typing import Any


def _process_age_sec() -> float | None:
    """Seconds since this process was started; None where nothing tells."""
    try:
        with open('/proc/self/stat', encoding='utf-8') as file:
            # The name, in parentheses, may hold blanks; field 22 is the
            # start, in hundredths of a second after that of the machine.
            ticks = file.read().rpartition(')')[2].split()[19]
        with open('/proc/uptime', encoding='utf-8') as file:
            return float(file.read().split()[0]) - int(ticks) / 100
    except (OSError, ValueError, IndexError):
        return None


@dataclasses.dataclass
class Journal:
    """Fills while a run goes on.

    Attributes:
        phases_sec: seconds of each phase of the start, in order.
        numbers: further facts by name, such as the global batch size.
        timed: a `loop.Record` of the timed steps, None before.
        watch: a `loop.Watch` of the steps, None before.
        batches: whose `skipped_images` count, None before.
        result: what the run returned, None before its end.
    """

    phases_sec: dict[str, float] = dataclasses.field(default_factory=dict)
    numbers: dict[str, Any] = dataclasses.field(default_factory=dict)
    timed: Any = None
    watch: Any = None
    batches: Any = None
    result: Any = None

    def __post_init__(self):
        self.started = time.time()
        self._last = time.perf_counter()
        age = _process_age_sec()
        if age is not None:
            self.phases_sec['process'] = age

    def follow(self, timed: Any, watch: Any, batches: Any) -> None:
        """Notes what fills while the steps run."""
        self.timed, self.watch, self.batches = timed, watch, batches

    def phase(self, name: str) -> None:
        """Notes that a phase of the start ends now.

        Only its first end counts: the first step is the first one.
        """
        now = time.perf_counter()
        if name not in self.phases_sec:
            self.phases_sec[name] = now - self._last
            self._last = now
