"""The process of one job of `hetsim.webapp.jobs`: reads its work from stdin, says on stdout how far it is and what came of it.

Ends at once where the app's end of stdin is closed: nobody is left who could want the result. Both ends are one program's own, so that
what passes between them may be pickled.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
from typing import Any, BinaryIO

from hetsim.errors import HetsimError
from hetsim.webapp.jobs import Progress


def run(source: BinaryIO, sink: BinaryIO) -> None:
    """One job from `source`, its words to `sink`."""
    lock = threading.Lock()

    def send(kind: str, content: Any) -> None:
        with lock:
            pickle.dump((kind, content), sink, protocol=pickle.HIGHEST_PROTOCOL)
            sink.flush()

    def report(done: int, total: int, text: str = "", partial: Any = None) -> None:
        send("progress", (Progress(done, total, text), partial))

    outcome: tuple[str, Any]
    function, args = pickle.load(source)
    threading.Thread(target=_end_with, args=(source,), daemon=True).start()
    try:
        outcome = ("done", pickle.dumps(function(*args, report), protocol=pickle.HIGHEST_PROTOCOL))
    except HetsimError as error:
        outcome = ("failed", _portable(error))
    except MemoryError:
        outcome = ("failed", "out of memory; a smaller cluster or fewer samples need less")
    except Exception as error:
        outcome = ("failed", f"{type(error).__name__}: {error}")
        raise
    finally:
        send(*outcome)


def _portable(error: HetsimError) -> HetsimError | str:
    """The error itself where it survives pickling, else its words."""
    try:
        return pickle.loads(pickle.dumps(error)) and error
    except Exception:
        return str(error)


def _end_with(source: BinaryIO) -> None:
    source.read()
    if hasattr(os, "killpg") and os.getpgid(0) == os.getpid():
        os.killpg(0, signal.SIGKILL)  # with the processes it has started itself
    os._exit(1)


if __name__ == "__main__":
    sink = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what anything prints must not come between
    run(sys.stdin.buffer, sink)
