from engine.stats import Histogram


def test_a_value_counts_in_the_first_bucket_that_reaches_it() -> None:
    histogram = Histogram((0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 7.0):
        histogram.observe(value)
    assert histogram.counts == [2, 1, 1]
    assert histogram.total == 7.65
