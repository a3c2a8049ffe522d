from dataclasses import astuple, dataclass, field
from random import Random

import pytest

from router.replicas.speeds import CHUNK_TOKENS, LeastSquares, Mark, Row, Source, Speeds
from router.steps import StepModel

# A 70B model on four H100s, and a small one on a processor.
LARGE = StepModel(base_s=0.0167, token_s=7.25e-5, attention_s=1e-9, sequence_s=4e-5, context_s=4.76e-8)
SMALL = StepModel(base_s=0.008, token_s=2e-3, attention_s=2e-8, sequence_s=2e-3, context_s=1e-6)


def seconds(step: StepModel, row: Row) -> float:
    units = (step.base_s, step.token_s, step.attention_s, step.sequence_s, step.context_s)
    return sum(count * unit for count, unit in zip(row, units, strict=True))


def random_row(dice: Random) -> Row:
    """A prefill beside some decodes, or an answer with some prefill between its tokens."""
    num_running, tokens = dice.randrange(60), float(dice.randrange(64, 20_000))
    steps = max(1.0, tokens / CHUNK_TOKENS) if dice.random() < 0.5 else float(dice.randrange(8, 900))
    pairs = tokens * (tokens / 2 + dice.randrange(30_000))
    return steps, tokens, pairs, steps * num_running, steps * num_running * dice.randrange(500, 12_000)


@pytest.mark.parametrize("truth", [LARGE, SMALL])
def test_a_hundred_samples_tell_how_long_a_step_takes(truth: StepModel) -> None:
    dice, squares = Random(1), LeastSquares()
    for _ in range(100):
        row = random_row(dice)
        squares.learn(row, seconds(truth, row) * dice.uniform(0.9, 1.1))
    for _ in range(50):
        row = random_row(dice)
        assert seconds(squares.step, row) == pytest.approx(seconds(truth, row), rel=0.2)


def test_coefficients_that_are_nothing_do_not_lead_the_others_astray() -> None:
    """Over thousands of samples, which is when a fault of the solver's own would have grown."""
    dice, squares = Random(6), LeastSquares()
    fast = StepModel(base_s=0.0068, token_s=1.8e-5, attention_s=0.0, sequence_s=0.0, context_s=7.6e-8)
    for _ in range(3000):
        row = random_row(dice)
        squares.learn(row, seconds(fast, row) * dice.uniform(0.8, 1.2))
    for _ in range(50):
        row = random_row(dice)
        assert seconds(squares.step, row) == pytest.approx(seconds(fast, row), rel=0.2)
    assert squares.step.base_s == pytest.approx(fast.base_s, rel=0.3)


def test_one_sample_corrects_the_scale_of_all_coefficients() -> None:
    squares, row = LeastSquares(), (1.0, 4000.0, 8e6, 0.0, 0.0)
    before = squares.step
    squares.learn(row, seconds(before, row) / 3)
    assert squares.step.token_s < 0.6 * before.token_s
    assert squares.step.context_s < 0.8 * before.context_s, "nothing was seen of it, but it is the same machine"


def test_a_few_wild_samples_change_little() -> None:
    dice, squares = Random(2), LeastSquares()
    for number in range(400):
        row = random_row(dice)
        wild = 50.0 if number % 10 == 9 else 1.0
        squares.learn(row, seconds(LARGE, row) * dice.uniform(0.95, 1.05) * wild)
    row = (1.0, 8192.0, 8192.0**2 / 2, 20.0, 200_000.0)
    assert seconds(squares.step, row) == pytest.approx(seconds(LARGE, row), rel=0.4)


def test_a_machine_that_slows_down_is_followed() -> None:
    dice, squares = Random(3), LeastSquares()
    slow = StepModel(*(2.0 * value for value in (0.0167, 7.25e-5, 1e-9, 4e-5, 4.76e-8)))
    for truth in (LARGE, slow):
        for _ in range(800):
            row = random_row(dice)
            squares.learn(row, seconds(truth, row))
    row = (1.0, 4000.0, 8e6, 10.0, 100_000.0)
    assert seconds(squares.step, row) == pytest.approx(seconds(slow, row), rel=0.15)


def test_coefficients_stay_above_zero_whatever_comes() -> None:
    dice, squares = Random(4), LeastSquares()
    for _ in range(3000):
        squares.learn(random_row(dice), dice.choice([0.0, 1e-6, dice.random(), 1e4]))
        assert min(squares.multiples) > 0.0
    assert squares.step.token_s < 1e3


@dataclass
class Engine:
    """One replica that prefills in order of arrival and decodes nothing."""

    truth: StepModel
    speeds: Speeds = field(default_factory=Speeds)
    now: float = 0.0
    free_at: float = 0.0

    def serve(self, num_tokens: int, sent_at: float) -> Mark:
        begun = max(self.free_at, sent_at)
        steps = max(1.0, num_tokens / CHUNK_TOKENS)
        self.now = self.free_at = begun + seconds(self.truth, (steps, num_tokens, num_tokens**2 / 2, 0.0, 0.0))
        return self.speeds.began(self.now, sent_at, num_tokens, num_tokens, 0, 0)


def test_first_tokens_teach_how_fast_prompts_are_computed_however_long_they_queued() -> None:
    dice, engine = Random(5), Engine(LARGE)
    sent_at = 0.0
    for _ in range(200):
        engine.serve(dice.randrange(200, 30_000), sent_at)
        sent_at += dice.random()  # three times what it can do: the queue grows
    assert 1 / engine.speeds.step.token_s == pytest.approx(1 / LARGE.token_s, rel=0.2)


def test_prompts_that_are_computed_in_one_step_are_one_sample() -> None:
    speeds = Speeds()
    for number in range(60):
        at = float(number)
        for late_s in (0.0, 1e-5, 2e-5, 3e-5):
            speeds.began(at + 0.1 + late_s, at, 1000, 1000, 0, 0)
    assert 1 / speeds.step.token_s == pytest.approx(4000 / 0.1, rel=0.35)


def test_answers_teach_the_time_of_a_step_and_need_their_tokens_counted() -> None:
    dice, speeds, now = Random(6), Speeds(), 0.0
    for counted in (False, True):
        for _ in range(150):
            num_running, context = dice.randrange(1, 50), dice.randrange(1000, 400_000)
            since = speeds.mark(now, 0, 0)
            num_output = dice.randrange(20, 400)
            now += (num_output - 1) * LARGE.decode_s(num_running, context)
            speeds.ended(since, now, num_output if counted else None, num_running, context)
        if not counted:
            assert speeds.squares.num_samples == 0
    assert speeds.step.decode_s(20, 200_000) == pytest.approx(LARGE.decode_s(20, 200_000), rel=0.1)


@pytest.mark.parametrize("is_told", [True, False])
def test_prefill_of_others_is_not_taken_for_slow_steps_where_the_replica_tells_of_it(is_told: bool) -> None:
    """Answers of ours, and between their tokens prompts that another router sent; once, the replica starts again."""
    dice, speeds, now, computed = Random(8), Speeds(), 0.0, 0
    for number in range(300):
        computed = 0 if number == 100 else computed
        speeds.observe(computed)
        num_new, num_output = dice.randrange(100, 8000), dice.randrange(20, 300)
        now += LARGE.prefill_s(num_new, num_new) + LARGE.base_s
        computed += num_new
        since = speeds.began(now, now - 1.0, num_new, num_new, 0, 0)
        num_others = dice.randrange(0, 30_000)
        now += (num_output - 1) * LARGE.decode_s(1, num_new) + num_others * LARGE.token_s
        computed += num_others
        if is_told:
            speeds.observe(computed)
        speeds.ended(since, now, num_output, 1, num_new)
    is_right = speeds.step.decode_s(1, 4000) == pytest.approx(LARGE.decode_s(1, 4000), rel=0.25)
    assert is_right is is_told, speeds


def test_an_answer_in_one_piece_teaches_its_prefill_and_its_steps_together() -> None:
    dice, speeds, now = Random(7), Speeds(), 0.0
    for _ in range(300):
        since = speeds.mark(now, 0, 0)
        num_new, num_output = dice.randrange(100, 8000), dice.randrange(10, 300)
        now += LARGE.prefill_s(num_new, num_new) + num_output * LARGE.decode_s(1, num_new)
        speeds.ended(since, now, num_output, 1, num_new, prefilled=(num_new, num_new))
    assert speeds.step.decode_s(1, 4000) == pytest.approx(LARGE.decode_s(1, 4000), rel=0.2)
    assert 1 / speeds.step.token_s == pytest.approx(1 / LARGE.token_s, rel=0.3)


def test_small_prompts_and_short_answers_teach_nothing() -> None:
    speeds = Speeds()
    for number in range(50):
        since = speeds.began(float(number), number - 0.5, 63, 63, 0, 0)
        speeds.ended(since, number + 0.5, 7, 0, 0)
    assert speeds.step == StepModel()
    assert repr(speeds) == "<Speeds <LeastSquares 0 samples, 2000 tokens/s>>"


def test_a_siblings_model_stands_for_few_own_samples_which_then_win() -> None:
    dice, speeds = Random(9), Speeds()
    told = StepModel(*(1.5 * value for value in astuple(LARGE)))
    speeds.take_over(told, num_few=8)
    for number in range(120):
        assert (speeds.step == told) is (number <= 8)
        assert speeds.source is (Source.SIBLING if number <= 8 else Source.OWN)
        row = random_row(dice)
        speeds._learn(row, seconds(LARGE, row) * dice.uniform(0.9, 1.1))
    row = random_row(dice)
    assert seconds(speeds.step, row) == pytest.approx(seconds(LARGE, row), rel=0.2)


@pytest.mark.parametrize("truth", [LARGE, SMALL])
@pytest.mark.parametrize("told", [LARGE, SMALL, StepModel(), StepModel(0.0068, 1.8e-5, 1e-14, 1e-9, 7.6e-8)])
def test_however_far_off_a_siblings_model_was_own_samples_come_to_the_truth(truth: StepModel, told: StepModel) -> None:
    dice, speeds = Random(9), Speeds()
    speeds.take_over(told, num_few=8)
    for _ in range(120):
        row = random_row(dice)
        speeds._learn(row, seconds(truth, row) * dice.uniform(0.9, 1.1))
    for _ in range(50):
        row = random_row(dice)
        assert seconds(speeds.step, row) == pytest.approx(seconds(truth, row), rel=0.25), speeds
    if told in (LARGE, SMALL):
        assert speeds.is_contradicted is (told != truth)
    speeds.begin_anew()
    assert not speeds.is_contradicted, "it may be another machine now"


def test_what_own_samples_say_nothing_of_stays_as_it_was_told() -> None:
    """Prompts alone were seen; the steps of decoding are the sibling's still."""
    speeds, row = Speeds(), (1.0, 4000.0, 8e6, 0.0, 0.0)
    speeds.take_over(LARGE, num_few=8)
    for _ in range(20):
        speeds._learn(row, seconds(LARGE, row))
    assert speeds.step.decode_s(20, 200_000) == pytest.approx(LARGE.decode_s(20, 200_000), rel=0.05)


def test_a_replica_that_comes_back_is_learned_anew_from_what_it_was() -> None:
    dice, speeds = Random(10), Speeds()
    for truth in (LARGE, SMALL):
        speeds.begin_anew()
        assert (speeds.source, speeds.num_own) == (Source.PRIOR, 0)
        for _ in range(100):
            row = random_row(dice)
            speeds._learn(row, seconds(truth, row))
        assert speeds.source is Source.OWN
        row = random_row(dice)
        assert seconds(speeds.step, row) == pytest.approx(seconds(truth, row), rel=0.2)
    speeds.forget()
    assert speeds.step == StepModel()
