"""The table of grades in docs/method.md is that of the records."""

import convergence


def test_the_table_of_grades_is_that_of_the_records():
    assert convergence.table() in convergence.PAGE.read_text(), "run benchmarks/convergence.py"
    assert {one["grade"] for one in convergence.records()} <= set(convergence.GRADES)
