"""The command line: `hetsim`. No logic here: each command reads its arguments, calls one function, shows what it returns.

    running      simulate, compare, explain, replay
    sweeping     sweep
    planning     plan, diff
    validating   validate
    calibrating  calibrate
    fitting      fit
    describing   profiles, algorithms, schema, init, import, report, app
    checking     doctor
    arguments    what the commands have in common
    tables       results as Rich tables; sweeps: those of a sweep
    terminal     stdout, stderr, progress

Exit codes: 0 fine, 1 a run failed, 2 usage or bad input, 3 a check failed, 130 interrupted.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

import typer

from hetsim.cli import calibrating, checking, describing, fitting, planning, running, sweeping, validating
from hetsim.cli.terminal import say
from hetsim.errors import HetsimError, ProfileError

EXAMPLES = """\
How would training run on a cluster of unequal GPUs, and which algorithm wins?

\b
Examples:
  hetsim compare                             four unequal GPUs, all algorithms
  hetsim compare mixed-gpu-4-slow -o out     slow network; keep it in a folder
  hetsim compare --set network.bandwidth_gbit_per_s=1 -a s-sgd -a abs-sgd
  hetsim init --gpus A100:2,V100:2 > my.yaml describe your own cluster
  hetsim plan my.yaml                        what to run on it, and why
  hetsim simulate my.yaml -a abs-sgd         timing of one algorithm
  hetsim explain my.yaml -a abs-sgd          the arithmetic behind a number
  hetsim validate emulated-4 -a abs-sgd      predict, then train for real on this machine
"""

app = typer.Typer(
    name="hetsim",
    help=EXAMPLES,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        from hetsim import __version__

        print(f"hetsim {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", metavar=" ", help="Print the version and exit.", callback=_version, is_eager=True
    ),
) -> None:
    pass


running.register(app)
sweeping.register(app)
planning.register(app)
validating.register(app)
calibrating.register(app)
fitting.register(app)
describing.register(app)
checking.register(app)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; every expected error becomes one message on stderr."""
    sys.stdout, sys.stderr = sys.stdout or _nowhere(), sys.stderr or _nowhere()  # closed (>&-): nobody wants to read it
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal that knows only ASCII shows ? for µ and ▶
    with _ending_on_signals():
        return _run(list(sys.argv[1:] if arguments is None else arguments))


def _nowhere() -> TextIO:
    return open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115: for as long as the process lives


def _run(arguments: list[str]) -> int:
    try:
        code = app(args=arguments, prog_name="hetsim", standalone_mode=False)
        if code == 130:
            say("interrupted; nothing was left half-written")
        return int(code or 0)
    except HetsimError as error:
        # A profile's problems open with file:line:column, which editors and terminals turn into links.
        say(str(error) if isinstance(error, ProfileError) else f"error: {error}")
        return error.exit_code
    except MemoryError:
        say("error: out of memory; a smaller run needs less (--updates, training.max_samples, fewer --jobs)")
        return 1
    except (KeyboardInterrupt, typer.Abort):
        say("interrupted; nothing was left half-written")
        return 130
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 0
    except OSError as error:
        if error.errno != errno.ENOSPC or error.filename is not None:
            raise
        os.dup2(
            os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
        )  # what is still buffered would fail again at exit
        say(f"error: the output cannot be written: {error.strerror}")
        return 1
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        return _usage(error)  # Typer brings its own copy of click or uses an installed one: known by what it offers


def _usage(error: Any) -> int:
    """Unknown option or command, missing argument: what Typer found, without its box."""
    context = getattr(error, "ctx", None)
    text = error.format_message()
    if not text:  # no arguments: the help has been shown
        return int(error.exit_code)
    say(f"error: {text[:1].lower()}{text[1:]}")
    if context is not None:
        say(f"see {context.command_path} --help")
    return int(error.exit_code)


@contextmanager
def _ending_on_signals() -> Iterator[None]:
    """Ctrl-C and a termination signal unwind, so that temporary folders and worker processes go away.

    What threads of the process pool say while they are taken down is of no use to anybody.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ending = False

    def end(signum: int, frame: Any) -> None:
        nonlocal ending
        ending = True
        raise KeyboardInterrupt if signum == signal.SIGINT else SystemExit(128 + signum)

    def in_thread(problem: Any) -> None:
        if not ending:
            threading.__excepthook__(problem)

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    threading.excepthook = in_thread
    try:
        yield
    finally:
        threading.excepthook = threading.__excepthook__
        for number, handler in before.items():
            signal.signal(number, handler)
