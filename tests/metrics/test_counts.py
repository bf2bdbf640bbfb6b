"""Counters and histograms before they are written down."""

from concurrent.futures import ThreadPoolExecutor

from tensorfusion_dra.metrics.counts import Counter, Distribution, Histogram


def test_known_labels_exist_at_0() -> None:
    assert Counter([("a",), ("b",)]).read() == {("a",): 0, ("b",): 0}
    assert Histogram([("a",)], bounds=(1.0,)).read() == {("a",): Distribution((0, 0), 0.0)}


def test_other_labels_begin_with_their_first_event() -> None:
    counter, histogram = Counter([]), Histogram([], bounds=(1.0,))

    counter.add(("new",), 3)
    histogram.add(("new",), 2.0)

    assert counter.read() == {("new",): 3}
    assert histogram.read() == {("new",): Distribution((0, 1), 2.0)}


def test_a_duration_counts_up_to_every_bound_that_it_does_not_exceed() -> None:
    histogram = Histogram([("a",)], bounds=(0.5, 1.0, 2.0))

    histogram.add_each([(("a",), 0.25), (("a",), 1.0), (("a",), 4.0)])

    assert histogram.read() == {("a",): Distribution((1, 2, 2, 3), 5.25)}


def test_no_event_of_many_threads_is_lost() -> None:
    counter, histogram = Counter([("a",)]), Histogram([("a",)], bounds=(1.0,))

    def count() -> None:
        for _ in range(1000):
            counter.add(("a",))
            histogram.add(("a",), 0.5)

    with ThreadPoolExecutor(8) as threads:
        for _ in range(8):
            threads.submit(count)

    assert counter.read() == {("a",): 8000}
    assert histogram.read() == {("a",): Distribution((8000, 8000), 4000.0)}
