"""What a user gets: the wheel, built through the sdist, where the dependencies are seen but not the checkout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from configparser import ConfigParser
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "streamlit", "plotly", "scipy", "joblib")


@dataclass(frozen=True)
class Installed:
    python: Path
    hetsim: Path
    folder: Path  # an empty one to run from

    def run(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        environment = {k: v for k, v in os.environ.items() if k not in {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}}
        return subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True, encoding="utf-8", timeout=120
        )


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist and the wheel that was built from it."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (path,) = built.glob("hetsim-*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    home = tmp_path_factory.mktemp("user")
    builder = venv.EnvBuilder(with_pip=False)
    builder.create(home / "env")
    environment = builder.ensure_directories(home / "env")
    python = Path(environment.env_exe)
    scripts = {"platbase": str(home / "env"), "base": str(home / "env")}
    site = Path(sysconfig.get_path("purelib", "venv", scripts))
    # Python reads .pth files of its own site folder only: through this line the dependencies are seen, but not a
    # checkout that happens to be installed in editable mode beside them.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index", str(wheel)]
    done = subprocess.run(pip, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    (home / "elsewhere").mkdir()
    return Installed(python, Path(environment.bin_path, "hetsim"), home / "elsewhere")


def test_wheel_holds_profiles_schemas_data_and_types(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    wanted = {
        "hetsim/py.typed",
        "abs_sgd/py.typed",
        "hetsim/schemas/profile-1.json",
        "hetsim/profiles/mixed-gpu-4.yaml",
    }
    assert wanted <= names
    for folder, inside in (("profiles", "hetsim/profiles"), ("hetsim/schemas", "hetsim/schemas")):
        shipped = {name.removeprefix(inside + "/") for name in names if name.startswith(inside + "/")}
        assert shipped == {path.name for path in (ROOT / folder).iterdir() if path.is_file()}


def test_wheel_holds_nothing_but_the_two_packages(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    (info,) = {name.split("/")[0] for name in names if ".dist-info/" in name}
    assert {name.split("/")[0] for name in names} == {"hetsim", "abs_sgd", info}
    assert f"{info}/licenses/LICENSE" in names
    assert not [name for name in names if name.endswith((".pyc", ".so")) or "__pycache__" in name]


def test_every_entry_point_names_a_module_in_the_wheel(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (table,) = [name for name in archive.namelist() if name.endswith(".dist-info/entry_points.txt")]
    parser = ConfigParser()
    parser.read_string(archive.read(table).decode())
    assert dict(parser["console_scripts"]) == {"hetsim": "hetsim.cli:main"}
    assert "virtual" in parser["hetsim.predictors"]
    for group in parser.sections():
        for value in parser[group].values():
            base = value.partition(":")[0].replace(".", "/")
            assert {f"{base}.py", f"{base}/__init__.py"} & set(archive.namelist()), value


def test_sdist_holds_the_tests_and_the_profiles(built: Path) -> None:
    (path,) = built.glob("hetsim-*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"profiles/mixed-gpu-4.yaml", "tests/conftest.py", "README.md", "LICENSE", "pyproject.toml"} <= names


def test_core_install_asks_for_neither_torch_nor_streamlit_and_pins_nothing() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [word for extra in project["optional-dependencies"].values() for word in extra]
    assert not [word for word in project["dependencies"] if word.startswith(("torch", "streamlit"))]
    assert not [word for word in project["dependencies"] + extras if any(pin in word for pin in ("==", "<", "~="))]


def test_wheel_runs_from_another_folder(installed: Installed) -> None:
    where = installed.run(
        installed.python, "-c", "import hetsim, abs_sgd; print(hetsim.__file__); print(abs_sgd.__file__)"
    )
    assert where.returncode == 0, where.stderr
    for file in where.stdout.split():
        assert Path(file).is_relative_to(installed.python.parents[1]), "the checkout was imported, not the wheel"


def test_installed_command_finds_its_profiles(installed: Installed) -> None:
    done = installed.run(installed.hetsim, "profiles")
    assert done.returncode == 0, done.stderr
    assert "mixed-gpu-4" in done.stdout


def test_installed_command_simulates_a_shipped_profile(installed: Installed) -> None:
    command = ("simulate", "mixed-gpu-4", "-a", "abs-sgd", "--updates", "6", "--json")
    done = installed.run(installed.hetsim, *command)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["samples_per_s"] > 0
    assert not list(installed.folder.iterdir()), "a command without -o leaves nothing behind"


def test_installed_command_prints_the_shipped_schema(installed: Installed) -> None:
    done = installed.run(installed.hetsim, "schema")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == json.loads((ROOT / "hetsim/schemas/profile-1.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("module", ["hetsim", "hetsim.algorithms", "hetsim.commands"])
def test_import_is_light(module: str) -> None:
    code = f"import sys, {module}; print(*(name for name in {HEAVY!r} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [], f"import {module} loads them"


def test_readme_opens_with_its_two_lines() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    before, _, rest = text.partition("<!-- quickstart -->\n")
    block, end, _ = rest.partition("<!-- /quickstart -->")
    assert end and len(before.strip().splitlines()) == 1, "only the title comes before the block"
    lines = [line for line in block.splitlines() if line and not line.startswith("```")]
    assert len(lines) == 2
    assert all(line.startswith("python3 -m venv .venv && ") for line in lines)
