from random import Random

from router.core import Decision, Demand, Lease, Outcome, Standing
from router.routing.outputs import MAX_TENANTS, PRIOR_TOKENS, OutputLengths
from tests.router.nouns import make_demand, make_replica


def answer(lengths: OutputLengths, demand: Demand, num_tokens: int | None, outcome: Outcome = Outcome.OK) -> None:
    decision = Decision(make_replica(), "p", 0, 0, 0.0, {})
    lease = Lease(demand, decision, 0.0, lambda _: None, lambda _: None)
    lease.output_tokens = num_tokens
    lease.release(outcome)
    lengths.learn(lease)


def of(tenant: str, **fields: object) -> Demand:
    return make_demand(standing=Standing(tenant), **fields)  # type: ignore[arg-type]


def test_nothing_known_is_the_prior_and_never_more_than_allowed() -> None:
    assert OutputLengths().expect(make_demand()) == PRIOR_TOKENS
    assert OutputLengths().expect(make_demand(max_tokens=10)) == 10.0


def test_each_tenant_has_its_own_lengths_and_a_new_one_the_models() -> None:
    lengths = OutputLengths()
    for _ in range(200):
        answer(lengths, of("short"), 20)
        answer(lengths, of("long"), 800)
    assert 15 < lengths.expect(of("short")) < 30
    assert 600 < lengths.expect(of("long")) < 1100
    assert 20 <= lengths.expect(of("new")) <= 1100
    assert lengths.expect(of("new", model="other")) != PRIOR_TOKENS, "a pool's adapters resemble each other"


def test_about_three_fifths_of_the_answers_are_shorter() -> None:
    dice, lengths = Random(1), OutputLengths()
    for _ in range(3000):
        answer(lengths, make_demand(), dice.randrange(1, 1000))
    assert 450 < lengths.expect(make_demand()) < 750


def test_what_changes_is_followed() -> None:
    lengths = OutputLengths()
    for num_tokens in (1000, 10):
        for _ in range(600):
            answer(lengths, make_demand(), num_tokens)
    assert lengths.expect(make_demand()) < 15


def test_answers_that_broke_off_or_were_not_counted_teach_nothing() -> None:
    lengths = OutputLengths()
    answer(lengths, make_demand(), None)
    answer(lengths, make_demand(), 5, Outcome.CLIENT_GONE)
    assert lengths.expect(make_demand()) == PRIOR_TOKENS


def test_tenants_are_forgotten_beyond_a_number() -> None:
    lengths = OutputLengths()
    for number in range(MAX_TENANTS + 50):
        answer(lengths, of(f"t{number}"), 20)
    assert repr(lengths) == f"<OutputLengths of {MAX_TENANTS} tenants and models>"
