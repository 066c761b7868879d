"""Pages of the explorer in AppTest, begun with a view that is computed in a moment; validations and archives to open in them."""

from __future__ import annotations

import io
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

from streamlit.testing.v1 import AppTest

from hetsim import export, validation_folder
from hetsim.webapp import session
from hetsim.webapp.opening import OPENED, Opened
from hetsim.webapp.view import View

ROOT = Path(__file__).parents[2]
QUICK = View(
    source="homogeneous-4", overrides=("training.max_samples=50000",), algorithms=("s-sgd", "abs-sgd"), tuned=False
)
PATIENCE_S = 60.0


def page(name: str, view: View = QUICK, **state: Any) -> AppTest:
    """A session on that page."""
    app = AppTest.from_file(ROOT / "app.py", default_timeout=PATIENCE_S)
    app.session_state[session.VIEW] = view
    for key, value in state.items():
        app.session_state[key] = value
    app.switch_page(str(ROOT / "hetsim" / "webapp" / f"{name}.py")).run()
    return fine(app)


def fine(app: AppTest) -> AppTest:
    """Nothing was raised."""
    assert not app.exception, [(e.message, e.stack_trace) for e in app.exception]
    return app


def texts(app: AppTest) -> str:
    """What is told, in whatever shape."""
    kinds = (app.markdown, app.caption, app.error, app.info, app.success, app.warning, app.code, app.subheader)
    return "\n".join(str(element.value) for kind in kinds for element in kind).replace("\\", "")


def shown(element: Any) -> str:
    """Its text without what keeps it from being markdown."""
    return str(element.value).replace("\\", "")


def packed(folder: Path, above: str = "") -> bytes:
    """A folder as a zip archive."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                archive.write(path, above + path.relative_to(folder).as_posix())
    return out.getvalue()


@cache
def validation(factor: float = 1.0, labels: tuple[str, ...] = ("s-sgd",), seeds: int = 1) -> Any:
    """A validation whose truth is known: measured is predicted, slower by a factor."""
    from made_validations import made

    return made(factor, labels, seeds=tuple(range(seeds)), updates=20)


def opened(factor: float = 1.0, labels: tuple[str, ...] = ("s-sgd",), seeds: int = 1) -> dict[str, Opened]:
    """The session's entry that holds it."""
    material = validation_folder.material_of(validation(factor, labels, seeds))
    return {OPENED: Opened(name="two", validation=material)}


def validation_archive(tmp_path: Path, factor: float = 1.0) -> bytes:
    """The same as an archive, as a person would upload it."""
    return packed(validation_folder.write(validation(factor), tmp_path / "held"), "held/")


def result_archive(tmp_path: Path) -> bytes:
    """A comparison's folder as an archive."""
    from hetsim import compare

    found = compare(QUICK.profile(), ["s-sgd", "abs-sgd"], predictor="noise-scale", seeds=2, jobs=1)
    return packed(export.write_comparison(found, tmp_path / "compared"), "compared/")
