"""The command line from end to end: exit codes, one line on bad input, complete files or none."""

import gzip
import json
import logging
import os
import subprocess
import sys
from unittest import mock

import numpy as np
import pandas as pd
import pytest

from bsgp import cli
from bsgp.cli import main
from bsgp.cli.common import configure_logging
from bsgp.runtime.errors import DivergenceError

QUICK = ["--effort", "0.05", "--num-inducing", "8", "-q"]


def table(num_rows=60, seed=0):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "size": rng.uniform(0, 4, num_rows).round(3),
            "city": rng.choice(["Oslo", "Rome, Italy", 'the "Hague"'], num_rows),
            "new": rng.random(num_rows) < 0.5,
        }
    )
    frame["price"] = (10 * np.sin(frame["size"]) + 5 * frame["new"] + rng.standard_normal(num_rows)).round(3)
    frame["class"] = np.where(frame["price"] > 5, "dear", "cheap")
    frame.loc[::7, "size"] = np.nan
    return frame


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """A folder with tables and a model for each task."""
    folder = tmp_path_factory.mktemp("cli")
    table().to_csv(folder / "train.csv", index=False)
    table(30, seed=1).to_csv(folder / "test.csv", index=False)
    table(30, seed=1).to_parquet(folder / "test.parquet")
    arguments = ["fit", str(folder / "train.csv"), *QUICK]
    main([*arguments, "--target", "price", "--ignore", "class", "--out", str(folder / "prices")])
    main([*arguments, "--target", "class", "--ignore", "price", "--out", str(folder / "classes")])
    return folder


def refused(capsys, *arguments: object, code: int = 2) -> str:
    """Runs a command that must fail with one line, and returns the line."""
    with pytest.raises(SystemExit) as ended:
        main([str(one) for one in arguments])
    printed = capsys.readouterr()
    assert ended.value.code == code, printed.err
    lines = printed.err.strip().splitlines()
    assert len(lines) == 1, printed.err
    assert lines[0].startswith("bsgp: ")
    assert "Traceback" not in printed.err
    return lines[0]


# -- the round trip ----------------------------------------------------------------------------------------------


def test_predictions_are_a_table(work):
    out = work / "predictions.csv"
    main(["predict", str(work / "prices"), str(work / "test.csv"), "--out", str(out), "-q"])
    predicted = pd.read_csv(out)
    assert list(predicted.columns) == ["mean", "std", "q05", "q50", "q95", "extrapolation"]
    assert len(predicted) == 30
    assert (predicted["q05"] < predicted["q95"]).all()
    truth = table(30, seed=1)["price"]
    assert np.corrcoef(predicted["mean"], truth)[0, 1] > 0.8


def test_formats_and_column_order_do_not_matter(work):
    csv, parquet = work / "a.csv", work / "b.parquet"
    shuffled = table(30, seed=1)[["new", "price", "city", "size"]]  # the ignored class is not even there
    shuffled.to_csv(work / "shuffled.csv", index=False)
    main(["predict", str(work / "prices"), str(work / "test.parquet"), "--out", str(parquet), "-q"])
    main(["predict", str(work / "prices"), str(work / "shuffled.csv"), "--out", str(csv), "-q"])
    np.testing.assert_allclose(pd.read_csv(csv).to_numpy(), pd.read_parquet(parquet).to_numpy())


def test_class_predictions_name_the_classes(work):
    out = work / "labels.csv"
    main(["predict", str(work / "classes"), str(work / "test.csv"), "--out", str(out), "-q"])
    predicted = pd.read_csv(out)
    assert list(predicted.columns) == ["p_cheap", "p_dear", "label", "extrapolation"]
    np.testing.assert_allclose(predicted["p_cheap"] + predicted["p_dear"], 1.0)
    assert (predicted["label"] == table(30, seed=1)["class"]).mean() > 0.7


def test_parts_of_the_doubt_are_columns_behind_an_option(work):
    def predicted(model, *options):
        out = work / "parts.csv"
        main(["predict", str(work / model), str(work / "test.csv"), "--out", str(out), "-q", *options])
        return pd.read_csv(out)

    plain, split = predicted("prices"), predicted("prices", "--parts")
    assert list(split.columns) == [
        "mean", "std", "epistemic", "aleatoric", "q05", "q50", "q95", "extrapolation",
    ]  # fmt: skip
    np.testing.assert_allclose(split[plain.columns], plain, rtol=1e-9)
    np.testing.assert_allclose(np.hypot(split["epistemic"], split["aleatoric"]), split["std"])
    assert plain["extrapolation"].between(0, 1).all()
    classes = predicted("classes", "--parts")
    assert list(classes.columns) == ["p_cheap", "p_dear", "label", "epistemic", "aleatoric", "extrapolation"]
    p = classes[["p_cheap", "p_dear"]]
    np.testing.assert_allclose(classes["epistemic"] + classes["aleatoric"], -(p * np.log(p)).sum(axis=1), rtol=1e-6)


@pytest.mark.parametrize(
    ("model", "names"),
    [("prices", ["mnll", "nrmse", "rmse", "crps", "coverage90"]), ("classes", ["mnll", "error", "auc"])],
)
def test_evaluate_prints_json(work, capsys, model, names):
    main(["evaluate", str(work / model), str(work / "test.csv"), "--json"])
    scores = json.loads(capsys.readouterr().out)
    assert list(scores) == [*names, "rows", "baselines"]
    assert scores["rows"] == 30
    assert list(scores["baselines"]) == ["constant", "linear"]
    assert scores["mnll"] < scores["baselines"]["constant"]["mnll"]


def test_evaluate_prints_a_table(work, capsys):
    main(["evaluate", str(work / "prices"), str(work / "test.csv")])
    assert {"constant", "linear", "bsgp", "coverage90"} <= set(capsys.readouterr().out.replace("│", " ").split())


def test_fit_prints_json_and_takes_several_targets(work, capsys):
    frame = table()
    frame.assign(double=2 * frame["price"]).to_csv(work / "two.csv", index=False)
    out = work / "two"
    main(["fit", str(work / "two.csv"), *QUICK, "--target", "price,double", "--ignore", "class", "--out", str(out),
          "--likelihood-power", "0.5", "--json"])  # fmt: skip
    summary = json.loads(capsys.readouterr().out)
    assert summary["task"] == "regression"
    assert summary["rows"] == 60
    assert any("size" in note for note in summary["notes"])
    main(["predict", str(out), str(work / "two.csv"), "--out", str(work / "both.csv"), "-q"])
    assert list(pd.read_csv(work / "both.csv"))[:2] == ["price_mean", "price_std"]


def test_report_is_written_beside_the_model(work, capsys):
    main(["report", str(work / "prices"), "--test", str(work / "test.csv")])
    assert str(work / "prices" / "report.html") in capsys.readouterr().out.replace("\n", "")
    assert "price" in (work / "prices" / "report.html").read_text()


# -- bad input ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--target", "cost"], "cost"),
        (["--target", "price", "--ignore", "colour"], "colour"),
        (["--target", "price", "--task", "clustering"], "clustering"),
        (["--target", "city", "--task", "regression"], "numbers"),
        (["--target", "price", "--task", "classification"], "fractions"),
        (["--target", "city,class"], "one column"),
        (["--target", "price", "--depth", "0"], "depth"),
        (["--target", "price", "--method", "magic"], "magic"),
        (["--target", "price", "--likelihood-power", "0"], "likelihood_power"),
        (["--target", "price", "--chains", "four"], "four"),
        (["--target", "price", "--speed", "11"], "speed"),
        ([], "target"),
    ],
)
def test_impossible_fits_are_refused(work, capsys, options, word):
    out = work / "never"
    assert word in refused(capsys, "fit", work / "train.csv", "--out", out, "-q", *options)
    assert not out.exists()


def test_new_data_are_checked_against_the_schema(work, capsys):
    new = table(5, seed=2)
    for changed, word in (
        (new.drop(columns="city"), "city"),
        (new.assign(colour="red"), "colour"),
        (new.assign(city="Paris"), "Paris"),
        (new.assign(size="large"), "large"),
    ):
        changed.to_csv(work / "changed.csv", index=False)
        out = work / "never.csv"
        assert word in refused(capsys, "predict", work / "prices", work / "changed.csv", "--out", out)
        assert not out.exists()


def test_a_model_must_be_a_model(work, capsys):
    for command in (["predict", work, work / "test.csv", "--out", work / "x.csv"], ["report", work / "nowhere"]):
        assert "must" in refused(capsys, *command)
    assert "must end in" in refused(capsys, "predict", work / "prices", work / "test.csv", "--out", work / "x.doc")
    (work / "full").mkdir()
    (work / "full" / "thesis.txt").write_text("years")
    line = refused(capsys, "fit", work / "train.csv", "--target", "price", "--out", work / "full")
    assert "got a folder with other files" in line


# Every kind of malformed table, made from a good one; details depend on a seed.


def _lines(rng):
    return table(int(rng.integers(5, 40)), seed=int(rng.integers(100))).to_csv(index=False).splitlines()


def _any_row(rng, lines):
    return int(rng.integers(1, len(lines)))


def _change(rng, how):
    lines = _lines(rng)
    row = _any_row(rng, lines)
    lines[row] = how(lines[row])
    return "\n".join(lines).encode()


def _cell(rng, column, value):
    lines = table(int(rng.integers(5, 40)), seed=int(rng.integers(100)))
    lines[column] = lines[column].astype(object)
    lines.loc[int(rng.integers(len(lines))), column] = value
    return lines.to_csv(index=False).encode()


def _spliced(rng, piece: bytes):
    whole = "\n".join(_lines(rng)).encode()
    at = int(rng.integers(1, len(whole) - 1))
    return whole[:at] + piece + whole[at:]


def _columns(rng, **columns):
    frame = table(int(rng.integers(60, 80)), seed=int(rng.integers(100)))
    return frame.assign(**{name: make(len(frame)) for name, make in columns.items()}).to_csv(index=False).encode()


MALFORMED = {
    "empty": lambda rng: b"" if rng.random() < 0.5 else b"\n" * int(rng.integers(1, 9)),
    "header only": lambda rng: (_lines(rng)[0] + "\n" * int(rng.integers(3))).encode(),
    "one row": lambda rng: "\n".join(_lines(rng)[:2]).encode(),
    "too many cells": lambda rng: _change(rng, lambda line: line + "," * int(rng.integers(1, 5))),
    "too few cells": lambda rng: _change(rng, lambda line: line.rsplit(",", 2)[0]),
    "not UTF-8": lambda rng: _spliced(rng, bytes([int(rng.integers(0x80, 0xC0)), 0xFF])),
    "UTF-16": lambda rng: "\n".join(_lines(rng)).encode("utf-16"),
    "NUL bytes": lambda rng: _spliced(rng, b"\0" * int(rng.integers(1, 4))),
    "binary": lambda rng: rng.bytes(int(rng.integers(50, 5000))),
    "duplicate header": lambda rng: ("\n".join(_lines(rng)).replace("city", rng.choice(["size", "price"]), 1)).encode(),
    "nameless column": lambda rng: "\n".join(_lines(rng)).replace("city", "", 1).encode(),
    "open quote": lambda rng: _change(rng, lambda line: '"' + line),
    "huge number": lambda rng: _cell(rng, "size", f"{rng.choice(['1e101', '-1e200', '1e308', 'inf', '-inf'])}"),
    "huge target": lambda rng: _cell(rng, "price", f"{rng.choice(['1e150', '-1e300', 'inf'])}"),
    "missing target": lambda rng: _cell(rng, "price", rng.choice(["", "NA", "nan"])),
    "wordy target": lambda rng: _cell(rng, "price", rng.choice(["12,5", "about ten", "$3"])),
    "constant target": lambda rng: _columns(rng, price=lambda n: 7.0),
    "no target": lambda rng: "\n".join(_lines(rng)).replace("price", "cost", 1).encode(),
    "dates": lambda rng: _columns(rng, when=lambda n: pd.date_range("2020-01-01", periods=n)),
    "free text": lambda rng: _columns(rng, note=lambda n: [f"note {i}" for i in range(n)]),
    "only the target": lambda rng: table(20, int(rng.integers(99)))[["price", "class"]].to_csv(index=False).encode(),
    "inputs all missing": lambda rng: _columns(rng, size=lambda n: "", city=lambda n: "NA", new=lambda n: ""),
    "inputs constant": lambda rng: _columns(rng, size=lambda n: 1, city=lambda n: "Oslo", new=lambda n: True),
    "another separator": lambda rng: "\n".join(_lines(rng)).replace(",", rng.choice([";", "|"])).encode(),
    "JSON": lambda rng: json.dumps(table(int(rng.integers(2, 9))).to_dict(orient="records")).encode(),
}
ENDINGS = {
    "train.txt": lambda rng: "\n".join(_lines(rng)).encode(),
    "train.csv.gz": lambda rng: gzip.compress("\n".join(_lines(rng)).encode())[: -int(rng.integers(4, 60))],
    "train.parquet": lambda rng: table().to_parquet()[: int(rng.integers(4, 3000))],
    "train.pq": lambda rng: rng.bytes(int(rng.integers(0, 500))),
    "train.xlsx": lambda rng: b"PK" + rng.bytes(300),
}
CASES = [("train.csv", kind, make) for kind, make in MALFORMED.items()] + [
    (name, f"damaged {name}", make) for name, make in ENDINGS.items()
]


@pytest.mark.parametrize(("name", "kind", "make"), CASES, ids=[kind for _, kind, _ in CASES])
def test_malformed_tables_are_refused_in_one_line(tmp_path, capsys, name, kind, make):
    for seed in range(7):  # 210 tables
        rng = np.random.default_rng([seed, *kind.encode()])
        (tmp_path / name).write_bytes(make(rng))
        out = tmp_path / "model"
        refused(capsys, "fit", tmp_path / name, "--target", "price", "--ignore", "class", "--out", out, *QUICK)
        assert [file.name for file in tmp_path.iterdir()] == [name]


def test_paths_that_are_no_files(tmp_path, capsys):
    (tmp_path / "folder.csv").mkdir()
    for path in (tmp_path / "folder.csv", tmp_path / "absent.csv", tmp_path / "absent" / "x.parquet"):
        refused(capsys, "fit", path, "--target", "price", "--out", tmp_path / "model")
    assert not (tmp_path / "model").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_no_permission(tmp_path, capsys):
    path = tmp_path / "train.csv"
    path.write_text("a,price\n1,2\n")
    path.chmod(0)
    assert "train.csv" in refused(capsys, "fit", path, "--target", "price", "--out", tmp_path / "model")


# -- start-up and help -------------------------------------------------------------------------------------------


def test_help_does_not_wait_for_jax():
    code = "import sys; from bsgp.cli import main; main(['--help']); assert not {'jax', 'sklearn'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "bsgp fit train.csv" in done.stdout


def test_the_package_imports_lazily():
    code = "import sys, bsgp; assert 'jax' not in sys.modules; bsgp.Plan; assert 'sklearn' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", ["fit", "predict", "evaluate", "report", "demo", "methods", "data", "bench"])
def test_every_command_has_help_with_its_own_example(capsys, command):
    main([command, "--help"])
    printed = capsys.readouterr().out
    assert "Usage: bsgp" in printed
    examples = printed.split("Example: ")[1:]
    assert all(one.startswith(f"bsgp {command}") for one in examples)
    assert examples or command in ("data", "bench")  # groups of commands


def test_methods_are_listed(capsys):
    main(["methods", "--json"])
    assert json.loads(capsys.readouterr().out)["bsgp"]["Z"] == "sample"
    main(["methods"])
    assert "bsgp" in capsys.readouterr().out


def test_logging_keeps_the_filters_of_others_and_prints_a_message_once(caplog):
    logger = logging.getLogger("bsgp")
    logger.addFilter(without_secrets := lambda record: "secret" not in record.getMessage())
    for _ in range(2):  # two commands in one process
        configure_logging(quiet=False, verbose=False)
        for message in ("a note", "a note", "a secret"):
            logger.warning(message)
    assert caplog.messages == ["a note", "a note"]
    assert without_secrets in logger.filters
    assert len(logger.filters) == 2


@pytest.mark.parametrize(("error", "code"), [(DivergenceError("it diverged"), 1), (ValueError("bad\ninput"), 2)])
def test_errors_end_in_one_line_and_a_code_of_their_own(monkeypatch, capsys, error, code):
    monkeypatch.setattr(cli, "app", mock.Mock(side_effect=error))
    assert refused(capsys, "methods", code=code) == f"bsgp: {' '.join(str(error).split())}"


def test_a_defect_is_not_hidden(monkeypatch):
    monkeypatch.setattr(cli, "app", mock.Mock(side_effect=RuntimeError("a defect")))
    with pytest.raises(RuntimeError, match="a defect"):
        main(["methods"])
