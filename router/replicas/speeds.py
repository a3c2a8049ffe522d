"""How fast a replica is, learned while it works: the step model, from first tokens and from whole answers.

Knows when the requests that we sent there began and ended, and their tokens; knows no sockets, no policy and no clock.

Two kinds of samples are equations on the same five coefficients of `core.StepModel`, in seconds over some steps:

    first token   the time since the one before it there (or since it was sent)  = about one step a chunk + its tokens
    answer        the time from its first token to its end = a step a token, + all prefill that came between

and least squares over samples that fade solve them. Coefficients are multiples of the prior's, errors are relative, and
one wrong scale (a CPU for a GPU) is corrected at once in all of them; samples far off are weighed down.
"""

from dataclasses import astuple, dataclass, field
from enum import StrEnum

import msgspec

from router.steps import StepModel

PRIOR = StepModel()
# Prompt tokens that an engine computes in one step; only how many steps a long prompt takes depends on it.
CHUNK_TOKENS = 8192
# How much older samples count, sample by sample; and, in samples, how firmly a coefficient that nothing was seen of is
# taken to be off as much as all of them are together.
FORGETTING, FIRMNESS = 0.995, 1e-4
# Of one sample's news, what the common scale takes at least.
SCALE_RATE = 0.02
# A sample counts fully within so much of what was expected, and as if it were at most so many times more or less.
FULL_ERROR, MAX_RATIO = 0.3, 4.0
MIN_MULTIPLE = 1e-3
# Sweeps of the solver after each sample: it begins where it stood.
NUM_SWEEPS = 4
# Prompts below teach nothing of prefill: the time is mostly the network's. Answers below, nothing of steps.
MIN_PREFILL_TOKENS, MIN_ANSWER_TOKENS = 64, 8
# First tokens that come so close to the first of them, in steps, were computed in one step; however long steps are
# taken to be, one step's come within so much: else a wrong guess of steps would gather the tokens that confirm it.
SAME_STEP, SAME_STEP_S = 0.3, 0.02
MIN_INTERVAL_S = 0.01
# Of the prior's share, as the middle one of the coefficients has it, what each has at least where it is a prior itself.
LEAST_SHARE = 0.02
# A sibling's model is of something else where so many own samples are all off by so much.
MIN_CONTRADICTING, WRONG = 3, 3.0

Row = tuple[float, float, float, float, float]


class Source(StrEnum):
    """Where a model of a replica's speed is from: `PRIOR` is what was taken before anything was seen, or what it was
    before its restart."""

    PRIOR = "prior"
    SIBLING = "sibling"
    OWN = "own"


@dataclass(eq=False, slots=True)
class LeastSquares:
    """Least squares on the five coefficients, none below zero, over samples that fade. `multiples` are of the prior's.

    Solved by coordinate descent on the normal equations: a recursive inverse loses its way where coefficients are held
    at zero."""

    prior: StepModel = PRIOR
    multiples: tuple[float, float, float, float, float] = (1.0, 1.0, 1.0, 1.0, 1.0)
    num_samples: int = 0
    _units: Row = field(init=False)
    _scale: float = 1.0
    # The upper triangle of a symmetric matrix, row by row.
    _products: list[float] = field(default_factory=lambda: [0.0] * 15)
    _targets: list[float] = field(default_factory=lambda: [0.0] * 5)

    def __post_init__(self) -> None:
        prior = self.prior
        self._units = prior.base_s, prior.token_s, prior.attention_s, prior.sequence_s, prior.context_s

    @property
    def step(self) -> StepModel:
        return StepModel(*[multiple * unit for multiple, unit in zip(self.multiples, self._units, strict=True)])

    @property
    def scale(self) -> float:
        """Of the prior, how much longer everything takes."""
        return self._scale

    def learn(self, row: Row, seconds: float) -> None:
        """`seconds` were taken by so many steps, new tokens, pairs for attention, decodes and context tokens."""
        scaled = [count * unit for count, unit in zip(row, self._units, strict=True)]
        expected = sum([a * b for a, b in zip(scaled, self.multiples, strict=True)])
        if expected <= 0.0:
            return
        ratio = min(max(seconds / expected, 1.0 / MAX_RATIO), MAX_RATIO)
        taken, error = expected * ratio, abs(ratio - 1.0)
        self.num_samples += 1
        rate = max(SCALE_RATE, 1.0 / self.num_samples)
        self._scale *= (taken / (self._scale * sum(scaled))) ** rate
        # Huber's weight, of errors relative to what was taken.
        self._add([each / taken for each in scaled], 1.0 if error <= FULL_ERROR else FULL_ERROR / error)
        self._solve()

    def _add(self, relative: list[float], weight: float) -> None:
        pulls = [weight * each for each in relative]
        news = [pull * other for at, pull in enumerate(pulls) for other in relative[at:]]
        self._targets = [FORGETTING * old + pull for old, pull in zip(self._targets, pulls, strict=True)]
        self._products = [FORGETTING * old + new for old, new in zip(self._products, news, strict=True)]

    def _solve(self) -> None:
        """Each coefficient in turn, as the others are; written out, as it is done for most answers."""
        scale, firmness = self._scale, FIRMNESS / (self._scale * self._scale)
        least, pull = MIN_MULTIPLE * scale, firmness * scale
        a, b, c, d, e = self.multiples
        aa, ab, ac, ad, ae, bb, bc, bd, be, cc, cd, ce, dd, de, ee = self._products
        of_a, of_b, of_c, of_d, of_e = [target + pull for target in self._targets]
        for _ in range(NUM_SWEEPS):
            a = max(least, (of_a - ab * b - ac * c - ad * d - ae * e) / (aa + firmness))
            b = max(least, (of_b - ab * a - bc * c - bd * d - be * e) / (bb + firmness))
            c = max(least, (of_c - ac * a - bc * b - cd * d - ce * e) / (cc + firmness))
            d = max(least, (of_d - ad * a - bd * b - cd * c - de * e) / (dd + firmness))
            e = max(least, (of_e - ae * a - be * b - ce * c - de * d) / (ee + firmness))
        self.multiples = a, b, c, d, e

    def __repr__(self) -> str:
        return f"<LeastSquares {self.num_samples} samples, {1 / self.step.token_s:.0f} tokens/s>"


class Mark(msgspec.Struct, frozen=True, gc=False):
    """The sums of a replica at one moment."""

    at: float
    tokens: float
    pairs: float
    decodes_s: float
    context_s: float


@dataclass(eq=False, slots=True)
class _FirstTokens:
    """First tokens that came together, and since when the replica worked on them."""

    since: float
    first_at: float
    at: float
    tokens: float
    pairs: float
    num_running: int
    context_tokens: int
    is_joining: bool


@dataclass(eq=False, slots=True)
class Speeds:
    """One replica's. Call `began` for each first token and `ended` for each answer; both give the model as it then is.

    `num_running` and `context_tokens`: of what decodes there, before the event. `observe` them at every change.
    """

    squares: LeastSquares = field(default_factory=LeastSquares)
    _last: _FirstTokens | None = None
    _sums: Mark = field(default_factory=lambda: Mark(0.0, 0.0, 0.0, 0.0, 0.0))
    _learned_at: float = float("-inf")
    _unseen_tokens: float | None = None
    _step: StepModel = field(init=False)
    # Own samples up to which a sibling's model stands; 0 where none was told.
    _num_few: int = 0
    # Did our samples show that what a sibling told was of something else? Then none is believed.
    is_contradicted: bool = False

    def __post_init__(self) -> None:
        self._step = self.squares.step

    @property
    def step(self) -> StepModel:
        """The model as learned so far; the same object until more is learned."""
        return self._step

    @property
    def num_own(self) -> int:
        """Samples seen here, of the replica as it is now."""
        return self.squares.num_samples

    @property
    def source(self) -> Source:
        if self.num_own > self._num_few:
            return Source.OWN
        return Source.SIBLING if self._num_few else Source.PRIOR

    def take_over(self, step: StepModel, num_few: int) -> None:
        """A sibling has learned this: it stands until more than `num_few` own samples are there, and after that for
        whatever these say nothing of."""
        self._begin(step)
        self._num_few = num_few

    def begin_anew(self) -> None:
        """What comes back may be another machine: what it was is only the first guess."""
        self._begin(self._step)
        self.is_contradicted = False

    def forget(self) -> None:
        """It is another model."""
        self._begin(PRIOR)

    def _begin(self, step: StepModel) -> None:
        self.squares, self._step, self._last, self._num_few = LeastSquares(_as_prior(step)), step, None, 0

    def observe(self, computed_tokens: int) -> None:
        """It says how many prompt tokens it has computed since it started. What is more than ours was others', and took
        its time all the same; their prompts are taken to be as long as ours."""
        sums = self._sums
        if self._unseen_tokens is None or computed_tokens < self._unseen_tokens:  # it is new, or has started again
            self._unseen_tokens = computed_tokens - sums.tokens
            return
        others = computed_tokens - self._unseen_tokens - sums.tokens
        if others > 0.0:
            pairs = others * sums.pairs / sums.tokens if sums.tokens else 0.0
            self._sums = msgspec.structs.replace(sums, tokens=sums.tokens + others, pairs=sums.pairs + pairs)

    def mark(self, now: float, num_running: int, context_tokens: int) -> Mark:
        """Bring the sums up to now, over which so much was running."""
        sums = self._sums
        span = now - sums.at
        if span > 0.0:
            self._sums = sums = Mark(
                now,
                sums.tokens,
                sums.pairs,
                sums.decodes_s + num_running * span,
                sums.context_s + context_tokens * span,
            )
        return sums

    def began(
        self,
        now: float,
        sent_at: float,
        num_new: int,
        num_tokens: int,
        num_running: int,
        context_tokens: int,
        is_delayed: bool = False,
    ) -> Mark:
        """A first token: `num_new` of `num_tokens` prompt tokens were computed for it. It teaches nothing where
        something else delayed it."""
        self.mark(now, num_running, context_tokens)
        pairs = num_new * (num_tokens - 0.5 * num_new)
        last, sums = self._last, self._sums
        self._sums = Mark(now, sums.tokens + num_new, sums.pairs + pairs, sums.decodes_s, sums.context_s)
        if last is not None and now - last.first_at < min(SAME_STEP * self._step.base_s, SAME_STEP_S):
            last.at, last.tokens, last.pairs = now, last.tokens + num_new, last.pairs + pairs
            return self._sums
        self._learn_first_tokens()
        was_ahead = last is not None and last.at > sent_at
        since = last.at if last is not None and was_ahead else sent_at
        taught = 0 if is_delayed else num_new
        self._last = _FirstTokens(since, now, now, taught, pairs, num_running, context_tokens, not was_ahead)
        return self._sums

    def ended(
        self,
        since: Mark,
        now: float,
        num_output: int | None,
        num_running: int,
        context_tokens: int,
        prefilled: tuple[int, int] | None = None,
    ) -> None:
        """A whole answer of `num_output` tokens, None where nobody counted them; `since` is what `began` gave.

        Where nobody could tell when it began, `since` is what `mark` gave when it was sent, and `prefilled` what was
        computed for it: new prompt tokens, of all."""
        self._learn_first_tokens()
        if prefilled is not None:
            num_new, num_tokens = prefilled
            sums = self._sums
            pairs = num_new * (num_tokens - 0.5 * num_new)
            self._sums = Mark(sums.at, sums.tokens + num_new, sums.pairs + pairs, sums.decodes_s, sums.context_s)
        until = self.mark(now, num_running, context_tokens)
        seconds = until.at - since.at
        if num_output is None or num_output < MIN_ANSWER_TOKENS or seconds <= 0.0:
            return
        if now - self._learned_at < MIN_INTERVAL_S:
            return
        self._learned_at = now
        num_steps = num_output - 1 if prefilled is None else num_output
        a_second = num_steps / seconds
        row = (
            float(num_steps),
            until.tokens - since.tokens,
            until.pairs - since.pairs,
            (until.decodes_s - since.decodes_s) * a_second,
            (until.context_s - since.context_s) * a_second,
        )
        self._learn(row, seconds)

    def _learn_first_tokens(self) -> None:
        last = self._last
        if last is None or last.tokens < MIN_PREFILL_TOKENS or last.at <= last.since:
            return
        num_steps = max(1.0, last.tokens / CHUNK_TOKENS)
        if last.is_joining and last.num_running:
            num_steps += 0.5  # it came in the middle of one
        row = (num_steps, last.tokens, last.pairs, num_steps * last.num_running, num_steps * last.context_tokens)
        self._learn(row, last.at - last.since)
        last.tokens = last.pairs = 0.0

    def _learn(self, row: Row, seconds: float) -> None:
        self.squares.learn(row, seconds)
        if self.squares.num_samples > self._num_few:
            self._step = self.squares.step
        elif self.squares.num_samples >= MIN_CONTRADICTING and not 1.0 / WRONG < self.squares.scale < WRONG:
            self.forget()
            self.is_contradicted = True

    def __repr__(self) -> str:
        return f"<Speeds {self.squares!r}>"


def _as_prior(step: StepModel) -> StepModel:
    """No coefficient so small beside the others that samples could not raise it again."""
    shares = [of / unit for of, unit in zip(astuple(step), astuple(PRIOR), strict=True)]
    least = LEAST_SHARE * sorted(shares)[2]
    return StepModel(*[max(share, least) * unit for share, unit in zip(shares, astuple(PRIOR), strict=True)])
