from loadtest.engine.comparison import Ratio, over_our_bfloat16, ratios, ratios_in, rows_of
from loadtest.engine.engines import Contender
from loadtest.engine.job import Figures


def figures(speed: float, answer: int = 1, prefill: float = 100.0) -> Figures:
    return Figures({1: speed, 8: 4 * speed}, prefill, {}, [[1, 2], [3, answer]], load_s=1.0)


def contender(name: str, dtype: str = "float32", quantized: str = "auto") -> Contender:
    return Contender(name, dtype, ("true",), quantized)


def test_answers_are_counted_against_transformers_in_float32() -> None:
    rows = rows_of(
        {
            contender("vllm"): figures(1, answer=5),
            contender("transformers", "bfloat16"): figures(1, answer=7),
            contender("transformers"): figures(1, answer=5),
        }
    )
    assert [row.num_equal for row in rows] == [2, 1, 2]
    assert [row.is_right for row in rows] == [True, False, True]


def test_each_side_is_taken_in_its_fastest_format_that_is_right() -> None:
    rows = rows_of(
        {
            contender("transformers"): figures(10),
            contender("transformers", "bfloat16"): figures(20),
            contender("vllm"): figures(8, prefill=50.0),
            contender("vllm", "bfloat16"): figures(99, answer=2),
            contender("pointsman"): figures(30),
            contender("pointsman", "bfloat16"): figures(99, answer=2),
        }
    )
    assert ratios(rows) == [
        Ratio("batch 1", "transformers", 1.5),
        Ratio("batch 1", "vllm", 3.75),
        Ratio("batch 8", "transformers", 1.5),
        Ratio("batch 8", "vllm", 3.75),
        Ratio("prefill", "transformers", 1.0),
        Ratio("prefill", "vllm", 2.0),
    ]


def test_a_peer_that_is_never_right_is_not_compared() -> None:
    rows = rows_of(
        {contender("transformers"): figures(10), contender("vllm"): figures(1, 9), contender("pointsman"): figures(20)}
    )
    assert {ratio.peer for ratio in ratios(rows)} == {"transformers"}


def test_one_format_is_compared_whatever_the_answers() -> None:
    measured = {
        contender("transformers"): figures(10),
        contender("transformers", "bfloat16"): figures(20, answer=3),
        contender("pointsman", "bfloat16"): figures(50, answer=2),
        contender("pointsman", "bfloat16", "small"): figures(90),
    }
    assert [ratio.ratio for ratio in ratios_in(rows_of(measured), "bfloat16")] == [2.5, 2.5, 1.0]
    assert ratios_in(rows_of(measured), "float32") == []


def test_our_other_ways_are_compared_with_our_bfloat16() -> None:
    measured = {
        contender("transformers"): figures(10),
        contender("pointsman", "float32"): figures(60),
    }
    assert over_our_bfloat16(rows_of(measured)) == {}
    measured[contender("pointsman", "bfloat16")] = figures(30)
    measured[contender("pointsman", "bfloat16", "small")] = figures(45)
    assert over_our_bfloat16(rows_of(measured)) == {"pointsman float32": 2.0, "pointsman bfloat16, small": 1.5}


def test_of_two_turns_the_better_counts_are_taken_and_answers_that_stay() -> None:
    one = Figures({1: 10.0, 8: 50.0}, 300.0, {16: 4.0}, [[1, 2], [3]], load_s=2.0)
    two = Figures({1: 12.0, 8: 40.0}, 200.0, {16: 3.0}, [[1, 2], [4]], load_s=1.0)
    assert one.better_of(two) == Figures({1: 12.0, 8: 50.0}, 300.0, {16: 3.0}, [[1, 2], []], load_s=1.0)
    assert one.better_of(one) == one
