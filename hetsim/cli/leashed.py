"""A command that ends with whoever started it: `python -m hetsim.cli.leashed validate …` is `hetsim validate …` on a leash.

The leash is standard input, a pipe whose other end the starter holds and writes nothing to. When that end is closed, because the starter
closed it or is gone, whatever became of it, the command is interrupted as by a termination signal: it takes down its processes and network
namespaces and leaves nothing half-written.
"""

from __future__ import annotations

import _thread
import os
import signal
import sys
import threading
import time

from hetsim.cli import main

GRACE_S = 20.0  # for taking everything down: ranks have six seconds, namespaces one each [our choice]


def _end_with_starter() -> None:
    try:
        while os.read(0, 4096):
            pass
    except OSError:
        pass
    if os.name == "posix":
        os.kill(os.getpid(), signal.SIGTERM)  # wakes what sleeps
    else:
        _thread.interrupt_main()  # os.kill ends a process on Windows, whatever the signal
    time.sleep(GRACE_S)
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=_end_with_starter, daemon=True).start()
    sys.exit(main())
