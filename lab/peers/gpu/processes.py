"""Programs that the check starts, each with a limit of time.

In: a command, its environment, seconds. Out: [`Ended`]. Invariant: a program that takes too long is ended with all that it started,
and none keeps the check from going on.
"""

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
from typing import NamedTuple

LAST_LINES = 6


class Silent(Exception):
    """There is no answer, and why."""


class Ended(NamedTuple):
    """How a program ended: `code` is None when its time was over, negative for a signal."""

    code: object
    output: str
    errors: str
    seconds: float

    @property
    def reason(self):
        """Why it failed, with its last lines."""
        if self.code is None:
            how = f"still running after {self.seconds:.0f} s"
        elif self.code < 0:
            how = f"ended by signal {-self.code}"
        else:
            how = f"exit code {self.code}"
        return f"{how}: {last_lines(self.errors or self.output)}"

    def last_json(self, *keys):
        """Its answer, if it did not fail."""
        if self.code != 0:
            raise Silent(self.reason)
        return answer(self.output, *keys)


def last_lines(text):
    """The end of what a program said, in one line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " / ".join(lines[-LAST_LINES:]) or "it said nothing"


def answer(text, *keys):
    """The object with these keys that the last line of a text is."""
    last = (text.splitlines() or [""])[-1]
    with contextlib.suppress(ValueError):
        bench = json.loads(last)
        if isinstance(bench, dict) and all(key in bench for key in keys):
            return bench
    raise Silent(f"expected an object of {', '.join(keys) or 'any keys'} in its last line, got {last[:200]!r}")


def end(process):
    """Ends a program and all that it started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def run(words, limit_s, environment=None):
    """Runs a program to its end or for `limit_s` seconds."""
    start = time.monotonic()
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        try:
            process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            return Ended(127, "", str(error), 0.0)
        try:
            code = process.wait(max(limit_s, 0.1))
        except subprocess.TimeoutExpired:
            code = None
        finally:
            # In a separate session it does not receive Ctrl-C.
            end(process)
        texts = []
        for file in (output, errors):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    return Ended(code, *texts, time.monotonic() - start)
