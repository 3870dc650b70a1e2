import random

from scheduler_svc.simulate.measures import Measures, Point, Samples, Series


def make_samples(*pairs):
    samples = Samples()
    for value, weight in pairs:
        samples.add(value, weight)
    return samples


def test_quantiles_count_a_value_as_often_as_it_weighs():
    samples = make_samples((1.0, 98), (5.0, 1), (9.0, 1))
    assert samples.quantiles((0.5, 0.98, 0.99, 1.0)) == [1.0, 1.0, 5.0, 9.0]


def test_quantiles_are_those_of_the_list_written_out():
    rng = random.Random(3)
    pairs = [(rng.random(), rng.randint(1, 5)) for _ in range(200)]
    written_out = sorted(value for value, weight in pairs for _ in range(weight))
    shares = [(index + 0.5) / len(written_out) for index in range(len(written_out))]
    assert make_samples(*pairs).quantiles(shares) == written_out


def test_the_mean_is_weighted():
    assert make_samples((1.0, 3), (5.0, 1)).mean == 2.0


def test_nothing_counted_is_zero():
    assert (Samples().mean, Samples().quantiles((0.5,))) == (0.0, [0.0])


def test_a_histogram_holds_every_sample():
    edges, counts = make_samples((0.0, 1), (1.0, 2), (10.0, 3)).histogram(5)
    assert counts == [3, 0, 0, 0, 3]
    assert (edges[0], edges[-1], len(edges)) == (0.0, 10.0, 6)


def test_one_value_has_a_histogram():
    assert sum(make_samples((2.0, 4)).histogram(3)[1]) == 4


def test_a_series_keeps_few_points_of_the_whole_time():
    series = Series(max_points=50)
    for step in range(10_000):
        if series.is_due(step / 10):
            series.add(Point(step / 10, step, 0, 0.0))
    times_s = [point.time_s for point in series.points]
    assert 20 <= len(times_s) <= 50
    assert times_s == sorted(times_s)
    assert times_s[0] == 0.0 and times_s[-1] > 900


def test_measures_of_replicas_add_up():
    one, other = Measures(num_finished=2, end_s=3.0), Measures(num_finished=5, end_s=2.0)
    one.ttft_s.add(1.0)
    other.ttft_s.add(2.0)
    one.add(other)
    assert (one.num_finished, one.end_s, one.ttft_s.num_samples) == (7, 3.0, 2)
