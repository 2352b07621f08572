"""`pytorch_gpu.py` in a separate process, with requests over pipes.

In: a job. Out: its answers. Invariant: an answer that does not come in time ends the process; the reason is kept.
"""

import contextlib
import json
import pathlib
import queue
import subprocess
import sys
import tempfile
import threading

import processes


class Peer:
    """A process that trains a job in PyTorch when asked."""

    def __init__(self, job, limit_s, device="cuda"):
        self.errors = tempfile.TemporaryFile()
        script = pathlib.Path(__file__).with_name("pytorch_gpu.py")
        self.process = subprocess.Popen(
            [sys.executable, "-B", "-u", str(script), "--job", str(job), "--device", device],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            start_new_session=True,
        )
        self.answers = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        try:
            self.about = self._next(limit_s)
        except KeyboardInterrupt:
            self.close()
            raise

    def _read(self):
        for line in self.process.stdout:
            self.answers.put(line)
        self.answers.put(None)

    def _next(self, limit_s):
        try:
            line = self.answers.get(timeout=max(limit_s, 0.1))
        except queue.Empty:
            self.close()
            raise processes.Silent(f"no answer after {limit_s:.0f} s") from None
        if line is None:
            self.errors.seek(0)
            text = processes.last_lines(self.errors.read().decode(errors="replace"))
            self.close()
            raise processes.Silent(f"ended: {text}")
        return processes.answer(line)

    def ask(self, limit_s, **request):
        """The answer to one request."""
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        except (OSError, ValueError):
            raise processes.Silent("the process has ended") from None
        answer = self._next(limit_s)
        if "error" in answer:
            raise processes.Silent(answer["error"])
        return answer

    def close(self):
        """Ends the process."""
        processes.end(self.process)
        for file in (self.process.stdin, self.process.stdout, self.errors):
            with contextlib.suppress(OSError):
                file.close()
