"""Runs made elsewhere: a folder whose truth is known is off by what it was made to be off, whatever is not compared is named, and a folder
that is no finished run is refused in a sentence."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from finished_runs import TWO, change, finished

from abs_sgd.run_folder import facts_of
from abs_sgd.runtime.run import Pacing
from abs_sgd.update import UpdateRule
from abs_sgd.validate_runs import validate_runs
from hetsim import load_profile, simulate
from hetsim.cli import main
from hetsim.errors import UsageError
from hetsim.export import write_simulation
from hetsim.schedule.store import load, save

pytestmark = pytest.mark.torch
# A replica's step has a row of its own, as in every live run.
UPDATES_TAKE_TIME = TWO.replace("800.0}", "800.0, update_s: 0.001}").replace("400.0}", "400.0, update_s: 0.001}")
THREE = TWO.replace("name: two", "name: three").replace("{name: b,", "{name: c, samples_per_s: 1.0}, {name: b,")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of s-sgd, as predicted; not to be changed."""
    return finished(tmp_path_factory.mktemp("made") / "run")


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(made, tmp_path / "run"))


def checks(document: dict[str, Any], at: int = 0) -> dict[str, dict[str, Any]]:
    return {check["name"].partition(",")[0]: check for check in document["algorithms"][at]["checks"]}


# ---- figures -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        ("s-sgd", {"overlap": False}),
        ("lb-bsp", {}),
        ("one-step-delay-balanced", {}),
        ("local-sgd", {}),
        ("abs-sgd", {"compute_point": "current"}),
    ],
)
def test_a_run_as_predicted_is_off_by_nothing(algorithm: str, options: dict[str, Any], tmp_path: Path) -> None:
    """Algorithm, options, seed and length are the run's: with any of them wrong the second halves would differ."""
    found = validate_runs([finished(tmp_path / "run", algorithm, seed=3, options=options, text=UPDATES_TAKE_TIME)])
    (row,) = found.document["algorithms"]
    (one,) = row["runs"]
    assert (one["seed"], one["updates"], row["algorithm"]) == (3, 20, algorithm)
    assert one["predicted"] == one["measured"]
    assert one["period_error"] == one["share_error"] == 0.0
    assert one["replay_deviation"] <= 1e-6  # replicas of a method that averages may end apart by rounding
    assert found.within and found.document["updates"] == 20


@pytest.mark.parametrize("algorithm", ["asgd", "ssp"])
def test_a_run_of_a_server_is_compared_by_rates(algorithm: str, tmp_path: Path) -> None:
    """What was on its way when the end came counts as updates: a few more are predicted, at the same rate."""
    one = validate_runs([finished(tmp_path / "run", algorithm, updates=60)]).document["algorithms"][0]["runs"][0]
    assert 60 <= one["updates"] <= 64
    assert one["period_error"] < 0.05 and one["replay_deviation"] == 0.0


@pytest.mark.parametrize(("factor", "within"), [(1.04, True), (1.06, False)])
def test_a_slower_run_is_off_by_the_factor(factor: float, within: bool, tmp_path: Path) -> None:
    found = validate_runs([finished(tmp_path / "run", factor=factor)])
    one = found.document["algorithms"][0]["runs"][0]
    assert one["period_error"] == pytest.approx(factor - 1) and one["time_error"] == pytest.approx(factor - 1)
    assert one["share_error"] == 0.0 and found.within is within
    assert found.document["shaped"] is None and found.document["machine"] is None
    assert one["folder"] == str(tmp_path / "run")


def test_the_profile_given_predicts_and_not_the_runs_own(made: Path) -> None:
    """Half as fast and a free network: half the batch at b's 200 samples/s, by hand."""
    slow = TWO.replace("400.0}]", "200.0}]").replace("800.0", "400.0")
    slow = slow.replace("bandwidth_gbit_per_s: 0.2", "bandwidth_gbit_per_s: 1.0e9, latency_us: 0.0")
    found = validate_runs([made], load_profile(slow))
    one = found.document["algorithms"][0]["runs"][0]
    assert one["predicted"]["update_period_s"] == pytest.approx(
        16 / 200.0, rel=1e-3
    )  # half the batch each, b is slower
    assert one["measured"]["update_period_s"] == pytest.approx(
        simulate(load_profile(TWO), "s-sgd", updates=20).timing.update_period_s
    )
    assert not found.within
    assert "400.0" in found.profile_yaml and "800.0" not in found.profile_yaml


def test_overrides_change_the_runs_own_profile(made: Path) -> None:
    plain, faster = (
        validate_runs([made], overrides=o).document["algorithms"][0]["runs"][0]["predicted"]["update_period_s"]
        for o in ((), ("workers.b.samples_per_s=800",))
    )
    assert faster < plain


def test_parameters_that_the_schedule_does_not_give_are_found(run: Path) -> None:
    end_P = torch.load(run / "parameters.pt", weights_only=True)
    torch.save(end_P * 1.001, run / "parameters.pt")
    check = checks(validate_runs([run]).document)["replay"]
    assert check["within"] is False and check["error"] == pytest.approx(0.001, rel=0.01)


def test_gradients_travel_unpadded_unless_the_run_padded_them(tmp_path: Path) -> None:
    unpadded = validate_runs([finished(tmp_path / "a", pad=False)])
    padded = validate_runs([finished(tmp_path / "b", pad=True)])
    assert "gradients have the model's 19,240 bytes, not the profile's 100,000" in unpadded.document["said"]
    periods_s = [f.document["algorithms"][0]["runs"][0]["predicted"]["update_period_s"] for f in (unpadded, padded)]
    assert periods_s[0] < periods_s[1]


def test_runs_of_one_algorithm_are_seeds_and_options_make_another(tmp_path: Path) -> None:
    folders = [
        finished(tmp_path / "a", seed=0),
        finished(tmp_path / "b", seed=1),
        finished(tmp_path / "c", seed=1),
        finished(tmp_path / "d", options={"overlap": False}, updates=10),
    ]
    found = validate_runs(folders)
    first, second = found.document["algorithms"]
    assert [row["name"] for row in (first, second)] == ["s-sgd", "s-sgd:overlap=false"]
    assert [run["name"] for run in first["runs"]] == ["seed 0", "seed 1 in b", "seed 1 in c"]
    assert "period, median" in {check["name"] for check in first["checks"]}
    assert found.document["seeds"] == [0, 1] and found.document["updates"] is None


def test_late_passes_of_a_paced_run_are_counted(tmp_path: Path) -> None:
    paced = {"pacing": dataclasses.asdict(Pacing(profile=True, pad=True))}
    late = validate_runs([finished(tmp_path / "late", factor=2.0, **paced)])
    assert sum(late.document["algorithms"][0]["runs"][0]["late_passes"].values()) > 0
    assert any("the machine was late with passes" in text for text in late.document["said"])
    unpaced = validate_runs([finished(tmp_path / "unpaced", factor=2.0)])
    assert unpaced.document["algorithms"][0]["runs"][0]["late_passes"] == {}


# ---- what is not compared ------------------------------------------------------------------------------------------------------


def test_timing_only_executes_nothing(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("abs_sgd.validate.execute", None)
    found = validate_runs([made], losses=False)
    assert found.within and checks(found.document)["time to target"]["why"] == "timing only"
    assert checks(found.document)["replay"]["error"] is None
    assert found.document["algorithms"][0]["runs"][0]["measured"]["final_loss"] is None


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"workload": "my.models:net on my.data:set"}, "my.models:net on my.data:set does not come with abs_sgd"),
        ({"workload": "cifar10-small-resnet"}, "cifar10-small-resnet cannot be trained here (CIFAR-10 is needed"),
        ({"task_options": {"width": "9"}}, "digits-mlp cannot be trained here ("),
        ({"task_options": {"dtype": "float65"}}, "digits-mlp cannot be trained here (dtype: torch has no 'float65'"),
    ],
)
def test_a_workload_that_cannot_be_trained_here(
    changed: dict[str, Any], why: str, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HETSIM_CIFAR10", raising=False)
    found = validate_runs([change(run, **changed)])
    for name in ("replay", "time to target"):
        check = checks(found.document)[name]
        assert check["within"] is None and check["why"].startswith(why)
    assert checks(found.document)["period"]["within"] is True


def test_a_users_model_is_not_imported_whatever_it_is_called(tmp_path: Path) -> None:
    """Not even where it goes by a known name: module:function of a folder from elsewhere runs nothing."""
    text = TWO.replace("{name: digits-mlp,", "{name: digits-mlp, model: 'no.such:net', dataset: 'no.such:data',")
    found = validate_runs([finished(tmp_path / "run", text=text)])
    assert "does not come with abs_sgd" in checks(found.document)["replay"]["why"]


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"task_options": {"device": "cuda:0"}}, "the run was on cuda:0, whose arithmetic is not the CPU's"),
        ({"backend": "nccl"}, "the run was on cuda, whose arithmetic is not the CPU's"),
        ({"task_options": {"dtype": "float64"}}, "parameters.pt is not of digits-mlp"),
    ],
)
def test_parameters_of_another_arithmetic_are_not_compared_but_losses_are(
    changed: dict[str, Any], why: str, run: Path
) -> None:
    found = checks(validate_runs([change(run, **changed)]).document)
    assert found["replay"]["why"] == why and found["time to target"]["within"] is True


def test_without_parameters_and_after_many_updates_the_replay_is_not_compared(run: Path, tmp_path: Path) -> None:
    (run / "parameters.pt").unlink()
    assert checks(validate_runs([run]).document)["replay"]["why"] == "parameters.pt is missing"
    long = validate_runs([finished(tmp_path / "long", updates=201)], losses=True)
    assert checks(long.document)["replay"]["why"] == "more than 200 updates"


def test_facts_name_dtypes_as_options_do() -> None:
    said = facts_of("digits-mlp", {"dtype": torch.float64}, UpdateRule(learning_rate=0.1), Pacing(), "gloo")
    assert said["task_options"] == {"dtype": "float64"}


# ---- folders that are no finished run --------------------------------------------------------------------------------------------


def refused(*folders: Path, profile: str | None = None) -> str:
    with pytest.raises(UsageError) as caught:
        validate_runs(folders, load_profile(profile) if profile else None)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_folders_that_hold_no_finished_run(run: Path, tmp_path: Path) -> None:
    assert "there is no such folder" in refused(tmp_path / "nothing")
    assert "it is a file" in refused(run / "run.json")
    simulated = write_simulation(simulate(load_profile(TWO), "s-sgd", updates=5), tmp_path / "simulated")
    assert "run.json is missing" in refused(simulated)
    (run / "run.json").unlink()
    (run / "checkpoints").mkdir()
    assert "it was interrupted, no checkpoint was made: resume it" in refused(run)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '"x"', "[" * 100_000, "{}", '{"updates": "many", "samples": 1, "resumed": []}', "\udc80"]
)
def test_a_damaged_run_json(text: str, run: Path) -> None:
    (run / "run.json").write_text(text, encoding="utf-8", errors="surrogateescape")
    assert "run.json: damaged (" in refused(run)


@pytest.mark.parametrize(
    "changed",
    [{"rule": {}}, {"rule": {"learning_rate": 0.1, "optimizer": "lion"}}, {"pacing": 1}, {"task_options": {"a": {}}}]
    + [
        {"rule": {"learning_rate": 0.1, **rule}}
        for rule in ({"momentum": -1}, {"weight_decay": 1e308}, {"clip_norm": 0})
    ],
)
def test_damaged_facts(changed: dict[str, Any], run: Path) -> None:
    assert "run.json: damaged (" in refused(change(run, **changed))


def test_damaged_files(run: Path) -> None:
    (run / "parameters.pt").write_bytes(b"nothing")
    assert "holds no parameters" in refused(run)
    torch.save({"parameters_P": torch.zeros(3)}, run / "parameters.pt")
    assert "holds no parameters" in refused(run)
    (run / "schedule.parquet").write_bytes(b"nothing")
    assert "not a Parquet file" in refused(run)
    (run / "schedule.parquet").unlink()
    assert "schedule.parquet: no such file" in refused(run)


def header(run: Path, **changed: Any) -> Path:
    schedule = load(run / "schedule.parquet")
    save(
        dataclasses.replace(schedule, header=dataclasses.replace(schedule.header, **changed)), run / "schedule.parquet"
    )
    return run


def test_runs_that_cannot_be_predicted(run: Path, tmp_path: Path) -> None:
    assert "its run has 2 workers, three has 3" in refused(run, profile=THREE)
    assert "ended after 1 updates" in refused(finished(tmp_path / "short", updates=1))
    assert "unknown option" in refused(header(run, options={"overlapp": True}))
    assert "unknown algorithm" in refused(header(run, algorithm="s-sgdd", options={}))
    assert "is a prediction" in refused(header(run, algorithm="s-sgd", origin="predicted"))
    assert "name the one to predict with" in refused(header(run, origin="measured", profile_yaml=""))


def test_runs_that_do_not_belong_together(made: Path, run: Path, tmp_path: Path) -> None:
    assert "--from-run" in refused()
    assert "is given twice" in refused(made, made.parent / "." / "run")
    other = finished(tmp_path / "other", text=TWO.replace("800.0", "900.0"))
    assert "is of another profile" in refused(made, other)
    assert len(validate_runs([made, other], load_profile(TWO)).pairs["s-sgd"]) == 2
    assert "compare them apart" in refused(made, change(run, workload="digits-cnn"))


# ---- the command -------------------------------------------------------------------------------------------------------------


def test_the_command_compares_and_writes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    finished(tmp_path / "run", factor=1.2)
    assert main(["validate", "--from-run", "run", "--json", "-o", "held"]) == 3
    document = json.loads(capsys.readouterr().out)
    assert document["within"] is False and "period, seed 0: 20 % off" in document["verdict"]
    assert document["command"] == f"hetsim validate profile.yaml --from-run {tmp_path / 'run'}"
    assert {p.name for p in (tmp_path / "held").iterdir()} >= {"validation.json", "report.html", "measured-1"}
    monkeypatch.chdir(tmp_path / "held")  # where the command reproduces it
    assert main([*document["command"].split()[1:], "--json"]) == 3
    again = json.loads(capsys.readouterr().out)
    row, row_again = document["algorithms"][0], again["algorithms"][0]
    assert (row_again["checks"], row_again["verdict"]) == (row["checks"], row["verdict"])
    assert row_again["runs"][0]["folder"] == str(tmp_path / "run")
    assert (
        main(["validate", "--from-run", str(tmp_path / "run"), "--period-tolerance", "0.3", "--time-tolerance", "0.3"])
        == 0
    )
    assert "+20.0 %" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "name a profile and an algorithm"),
        (["emulated-4"], "name a profile and an algorithm"),
        (["-a", "s-sgd"], "name a profile and an algorithm"),
        (["emulated-4", "-a", "s-sgd", "--timing-only"], "--timing-only is for finished runs"),
        (["--from-run", "RUN", "-a", "s-sgd"], "--algorithm: settled when the run was made"),
        (["--from-run", "RUN", "--runs", "1"], "--runs: settled"),
        (["--from-run", "RUN", "--updates", "60"], "--updates: settled"),
        (["--from-run", "RUN", "--seed", "0"], "--seed: settled"),
        (["--from-run", "RUN", "--unshaped"], "--unshaped/--shaped: settled"),
        (["--from-run", "RUN", "--pace-tolerance", "1"], "--pace-tolerance: settled"),
        (["emulated-4", "--from-run", "RUN"], "its run has 2 workers, emulated-4 has 4"),
        (["--from-run", "NOTHING"], "holds no finished run (there is no such folder)"),
    ],
)
def test_what_the_command_refuses(
    arguments: list[str], said: str, made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["validate", *(str(made) if word == "RUN" else word for word in arguments)]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and said in captured.err and "Traceback" not in captured.err


def test_the_command_without_losses(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", "--from-run", str(made), "--timing-only"]) == 0
    assert "not compared: timing only" in " ".join(capsys.readouterr().out.split())
