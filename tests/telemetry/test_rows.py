from __future__ import annotations

from gateway.telemetry.rows import Rows


def test_rows_come_back_as_they_were_put_in() -> None:
    rows = Rows(2, 10)
    rows.add(100.25, 1.5, 2.0)
    rows.add(101.0, 0.5, 3.0)
    assert list(rows.since(0.0)) == [(100.25, 1.5, 2.0), (101.0, 0.5, 3.0)]


def test_the_oldest_goes() -> None:
    rows = Rows(1, 3)
    for number in range(7):
        rows.add(float(number), 10.0 * number)
    assert sorted(rows.since(0.0)) == [(4.0, 40.0), (5.0, 50.0), (6.0, 60.0)]


def test_older_ones_are_left_out() -> None:
    rows = Rows(1, 10)
    for number in range(5):
        rows.add(float(number), 0.0)
    assert [row[0] for row in rows.since(3.0)] == [3.0, 4.0]


def test_instants_keep_their_precision() -> None:
    rows = Rows(1, 1)
    rows.add(1_000_000.000_001, 0.1)
    ((instant, figure),) = rows.since(0.0)
    assert instant == 1_000_000.000_001
    assert abs(figure - 0.1) < 1e-8  # single precision is enough for a figure
