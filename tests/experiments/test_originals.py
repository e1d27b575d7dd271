"""The original files of HIGGS and of the 2008 flights, in miniature."""

import bz2
import gzip
import os
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from bsgp.experiments.datasets import originals
from bsgp.experiments.datasets.named import schemas
from bsgp.experiments.datasets.originals import load_original

FLIGHTS_HEADER = "Year,Month,DayofMonth,DayOfWeek,DepTime,ArrTime,TailNum,AirTime,ArrDelay,Distance,Cancelled"
FLIGHTS = {
    "late": "2008,1,3,4,2003,2211,N712SW,116,14,810,0",
    "early": "2008,2,29,5,0,5,N772SW,113,-2,515,0",
    "on time": "2008,12,31,3,959,1059,N712SW,60,0,300,0",
    "midnight": "2008,6,1,7,2330,2400,N772SW,30,1,100,0",
    "cancelled": "2008,1,3,4,NA,NA,N712SW,NA,NA,810,1",
    "diverted": "2008,1,3,4,1200,1500,N712SW,NA,NA,810,0",
    "unknown plane": "2008,1,3,4,800,900,N999ZZ,50,5,400,0",
    "no tail number": "2008,1,3,4,800,900,,50,5,400,0",
    "plane of no year": "2008,1,3,4,800,900,N050AA,50,5,400,0",
    "plane of year none": "2008,1,3,4,800,900,N111AA,50,5,400,0",
    "plane of year 0": "2008,1,3,4,800,900,N222AA,50,5,400,0",
    "built next year": "2008,1,3,4,800,900,N333AA,50,5,400,0",
    "built this year": "2008,1,3,4,800,900,N444AA,50,5,400,0",
}
PLANES = """tailnum,type,manufacturer,issue_date,model,status,aircraft_type,engine_type,year
N050AA
N712SW,Corporation,BOEING,02/04/1998,737-7H4,Valid,Fixed Wing Multi-Engine,Turbo-Fan,1998
N772SW,Corporation,BOEING,09/05/2000,737-7H4,Valid,Fixed Wing Multi-Engine,Turbo-Jet,2000
N111AA,Corporation,BOEING,,737-7H4,Valid,Fixed Wing Multi-Engine,Turbo-Jet,None
N222AA,Corporation,BOEING,,737-7H4,Valid,Fixed Wing Multi-Engine,Turbo-Jet,0000
N333AA,Corporation,BOEING,,737-7H4,Valid,Fixed Wing Multi-Engine,Turbo-Jet,2009
N444AA,Corporation,BOEING,,737-7H4,Valid,Fixed Wing Multi-Engine,Turbo-Jet,2008
"""
KEPT = np.asarray(
    [  # month, day, weekday, air time, distance, arrival, departure, age, label
        [1, 3, 4, 116, 810, 22 * 60 + 11, 20 * 60 + 3, 10, 1],
        [2, 29, 5, 113, 515, 5, 0, 8, 0],
        [12, 31, 3, 60, 300, 10 * 60 + 59, 9 * 60 + 59, 10, 0],
        [6, 1, 7, 30, 100, 1440, 23 * 60 + 30, 8, 1],
        [1, 3, 4, 50, 400, 540, 480, 0, 1],
    ]
)


def higgs_table(rng, num_rows=50):
    label = rng.integers(0, 2, (num_rows, 1))
    return np.concatenate([label, rng.standard_normal((num_rows, 28))], axis=1).astype(np.float32)


def higgs_lines(table):
    return "".join(",".join(f"{value:.18e}" for value in row) + "\n" for row in table)


def flights_text(*names):
    return "\n".join([FLIGHTS_HEADER, *(FLIGHTS[name] for name in names or FLIGHTS)]) + "\n"


def write_flights(folder, text=None, planes=PLANES):
    (folder / "2008.csv").write_text(text or flights_text())
    (folder / "plane-data.csv").write_text(planes)


def test_nothing_is_read_without_files(tmp_path):
    assert load_original("higgs", tmp_path) is None
    assert load_original("airline", tmp_path) is None
    with pytest.raises(ValueError, match="one of"):
        load_original("yacht", tmp_path)


def test_our_own_file_is_not_taken_for_the_original_even_if_case_is_ignored(tmp_path, rng, monkeypatch):
    def ignoring_case(path):
        return path.name.lower() in {name.lower() for name in os.listdir(path.parent)}

    monkeypatch.setattr(Path, "exists", ignoring_case)  # as on macOS and Windows
    monkeypatch.setattr(Path, "is_file", ignoring_case)
    (tmp_path / "higgs.csv.gz").write_bytes(gzip.compress(b"our own file"))
    assert load_original("higgs", tmp_path) is None
    table = higgs_table(rng, num_rows=3)
    (tmp_path / "HIGGS.csv").write_text(higgs_lines(table))
    original = load_original("higgs", tmp_path)
    assert original is not None
    assert_array_equal(original[0], table[:, 1:])


@pytest.mark.parametrize("ending", ["csv", "csv.gz"])
def test_higgs_gives_every_row(ending, tmp_path, rng, monkeypatch):
    monkeypatch.setattr(originals, "BLOCK_BYTES", 4_000)  # several batches
    monkeypatch.setattr(originals, "FIRST_ROWS", 7)  # and an array that has to grow
    table = higgs_table(rng)
    opened = gzip.open if ending == "csv.gz" else open
    with opened(tmp_path / f"HIGGS.{ending}", "wt") as file:
        file.write(higgs_lines(table))
    original = load_original("higgs", tmp_path)
    assert original is not None
    X, y = original
    assert X.dtype == y.dtype == np.float32
    assert X.shape[1] == len(schemas()["higgs"].inputs)
    assert_array_equal(X, table[:, 1:])
    assert_array_equal(y, table[:, :1])


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda text: "label," + ",".join("abcdefghijklmnopqrstuvwxyzAB") + "\n" + text, "no header"),
        (lambda text: text.replace(",", ";"), "29 numbers"),
        (lambda text: text + "1.0,2.0\n", "29 numbers"),
        (lambda text: "2" + text[1:], r"label 0 or 1 .* in row 1\."),
        (lambda text: text + "1" + ",nan" * 28 + "\n", r"finite .* in row 51\."),
        (lambda text: text + "1" + "," * 28 + "\n", r"finite .* in row 51\."),
        (lambda text: "", "29 numbers"),
    ],
)
def test_a_higgs_file_of_another_kind_is_refused(spoil, message, tmp_path, rng):
    (tmp_path / "HIGGS.csv").write_text(spoil(higgs_lines(higgs_table(rng))))
    with pytest.raises(ValueError, match=message):
        load_original("higgs", tmp_path)


def test_a_torn_higgs_file_is_refused(tmp_path, rng):
    whole = gzip.compress(higgs_lines(higgs_table(rng)).encode())
    (tmp_path / "HIGGS.csv.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="Fetch it again"):
        load_original("higgs", tmp_path)


@pytest.mark.parametrize("ending", ["csv", "csv.bz2"])
def test_flights_are_kept_dropped_and_labelled_as_the_manifest_says(ending, tmp_path):
    write_flights(tmp_path)
    if ending == "csv.bz2":
        (tmp_path / "2008.csv").unlink()
        (tmp_path / "2008.csv.bz2").write_bytes(bz2.compress(flights_text().encode()))
    original = load_original("airline", tmp_path)
    assert original is not None
    X, y = original
    assert X.dtype == y.dtype == np.float32
    assert X.shape[1] == len(schemas()["airline"].inputs)
    assert_array_equal(np.concatenate([X, y], axis=1), KEPT)


def test_flights_need_their_planes_and_their_columns(tmp_path):
    (tmp_path / "2008.csv").write_text(flights_text())
    with pytest.raises(ValueError, match=r"plane-data.csv.*no such file"):
        load_original("airline", tmp_path)
    write_flights(tmp_path, planes="tail,built\nN712SW,1998\n")
    with pytest.raises(ValueError, match="`tailnum` and `year`"):
        load_original("airline", tmp_path)
    write_flights(tmp_path, flights_text().replace("AirTime", "TimeAloft"))
    with pytest.raises(ValueError, match=r"must hold columns Year.*AirTime"):
        load_original("airline", tmp_path)
    write_flights(tmp_path, flights_text().replace(",116,", ",long,"))
    with pytest.raises(ValueError, match="long"):
        load_original("airline", tmp_path)
    write_flights(tmp_path, flights_text("cancelled", "unknown plane"))
    with pytest.raises(ValueError, match="none among 2 rows"):
        load_original("airline", tmp_path)
