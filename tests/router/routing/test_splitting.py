"""When two replicas serve one request, and which two."""

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from router.choice import Handover
from router.core import Candidate, Decision, Demand, Slo
from router.routing.moving import Moving
from router.routing.pointsman import Pointsman
from router.routing.splitting import PAUSE_S, Splitting
from router.spec import Role
from tests.router.nouns import make_candidate, make_demand, make_prompt, make_view

LONG = make_prompt(2001)


def splitting(tokens_per_s: float = 50_000.0, can_split: bool = True) -> Splitting:
    return Splitting(Pointsman("pointsman", 8), lambda _: can_split, Moving(1 / tokens_per_s), max_in_flight=8)


def half(name: str, role: Role | None, matched_tokens: int = 0, **fields: Any) -> Candidate:
    found = make_candidate(name, matched_tokens, **{"engine": "pointsman", **fields})
    found.replica.spec = replace(found.replica.spec, role=role)
    return found


def busy(name: str, role: Role | None = "decode", **fields: Any) -> Candidate:
    """It decodes for others: a prefill there would hold them up."""
    return half(name, role, **{"in_flight": 6, "context_tokens": 6000, **fields})


def decide(
    candidates: list[Candidate], demand: Demand | None = None, policy: Splitting | None = None, now: float = 0.0
) -> Decision | None:
    demand = demand or make_demand(prompt=LONG)
    return (policy or splitting()).decide(demand, make_view(candidates, now, expected_output_tokens=50.0))


def pair(decision: Decision | None) -> tuple[str | None, str]:
    """Who computes the prompt, where that is another, and who answers."""
    assert decision is not None
    return (decision.prefill.replica.id if isinstance(decision, Handover) else None), decision.replica.id


def test_a_long_prompt_for_a_busy_replica_is_computed_elsewhere() -> None:
    decision = decide([half("p", "prefill"), busy("d")])
    assert pair(decision) == ("p", "d")
    assert isinstance(decision, Handover)
    assert (decision.matched_tokens, decision.uncached_tokens, decision.moved_tokens) == (2000, 0, 2000)
    assert (decision.prefill.uncached_tokens, decision.prefill.output_tokens) == (2001, 1.0)
    assert decision.reason.endswith("; prefill=p; moved_tokens=2000")
    assert (decision.alone.matched_tokens, decision.alone.uncached_tokens) == (0, 2001)
    assert decision.alone.reason.endswith("; prefill_failed=p")


def test_an_idle_replica_does_both_itself() -> None:
    assert pair(decide([half("p", "prefill"), half("d", "decode")])) == (None, "d")


def test_what_takes_long_to_move_is_computed_where_it_is_needed() -> None:
    assert pair(decide([half("p", "prefill"), busy("d")], policy=splitting(500.0))) == (None, "d")


def test_a_queue_before_the_prefill_replica_speaks_against_it() -> None:
    queued = half("p", "prefill", prefilling=3, in_flight=3, prefilling_s=6.0, prefilled_at=6.0)
    assert pair(decide([queued, busy("d")])) == (None, "d")


def test_a_queue_before_the_decode_replica_passes_while_the_prompt_is_computed_elsewhere() -> None:
    queued = half("d", "decode", in_flight=2, prefilling=2, prefilling_s=2.0, prefilled_at=2.0)
    decision = decide([half("p", "prefill"), queued])
    assert pair(decision) == ("p", "d")
    assert decision is not None
    assert decision.expected_wait_s == pytest.approx(2.0)


def test_a_prompt_that_the_replica_holds_already_is_not_fetched() -> None:
    assert pair(decide([half("p", "prefill"), busy("d", matched_tokens=2000)])) == (None, "d")


def test_only_what_it_lacks_is_moved() -> None:
    decision = decide([half("p", "prefill", 1600), busy("d", matched_tokens=800)])
    assert isinstance(decision, Handover)
    assert (decision.moved_tokens, decision.prefill.matched_tokens, decision.prefill.uncached_tokens) == (
        1200,
        1600,
        401,
    )


def test_of_each_role_the_cheapest_is_taken() -> None:
    firsts = [half("far", "prefill", round_trip_s=0.3), half("holder", "prefill", 1900), half("cold", "prefill")]
    seconds = [busy("full", in_flight=7), busy("calm", in_flight=5)]
    assert pair(decide([*firsts, *seconds])) == ("holder", "calm")


def test_one_that_is_there_for_prompts_does_both_only_where_nobody_else_can() -> None:
    behind = half("d", "decode", prefilling=1, prefilling_s=3.0, prefilled_at=3.0)
    assert pair(decide([half("p", "prefill"), behind], policy=splitting(500.0))) == (None, "d")
    assert pair(decide([half("p", "prefill")])) == (None, "p")
    tried = make_demand(prompt=LONG, tried=frozenset(("d",)))
    assert pair(decide([half("p", "prefill"), busy("d")], tried)) == (None, "p")


def test_without_a_prefill_replica_the_others_do_both() -> None:
    assert pair(decide([busy("d"), half("both", None)])) == (None, "both")
    assert pair(decide([busy("d")])) == (None, "d")


def test_replicas_without_roles_are_left_to_the_other_policy() -> None:
    candidates = [half("a", None), half("b", None, 640)]
    demand = make_demand(prompt=make_prompt(640))
    view = make_view(candidates)
    assert splitting().decide(demand, view) == Pointsman("pointsman", 8).decide(demand, view)


def test_what_is_not_one_prompt_with_one_answer_is_not_split() -> None:
    assert pair(decide([half("p", "prefill"), busy("d")], policy=splitting(can_split=False))) == (None, "d")


def test_engines_that_do_not_speak_to_each_other_make_no_pair() -> None:
    assert pair(decide([half("p", "prefill", engine="vllm"), busy("d")])) == (None, "d")
    assert pair(decide([half("p", "prefill", engine=None), busy("d", engine=None)])) == (None, "d")


def test_a_pair_may_be_spoken_to_over_grpc_where_the_contract_has_a_handshake() -> None:
    for engine, expected in (("pointsman", "p"), ("vllm", None)):
        prefill, decode = half("p", "prefill", engine=engine), busy("d", engine=engine)
        for each in (prefill, decode):
            each.replica.spec = replace(each.replica.spec, url=f"grpc://{each.replica.id}:1")
        assert pair(decide([prefill, decode]))[0] == expected


def test_an_adapter_must_be_on_both() -> None:
    demand = make_demand(prompt=LONG, adapter="red")
    red: dict[str, Any] = {"adapters": frozenset(("red",)), "resident_adapters": frozenset(("red",))}
    assert pair(decide([half("p", "prefill"), busy("d", **red)], demand)) == (None, "d")
    assert pair(decide([half("p", "prefill", **red), busy("d", **red)], demand)) == ("p", "d")


def test_who_failed_in_its_half_is_left_alone_for_a_while() -> None:
    policy, candidates = splitting(), [half("p", "prefill"), busy("d")]
    policy.pause("p", 0.0)
    assert pair(decide(candidates, policy=policy)) == (None, "d")
    assert pair(decide(candidates, policy=policy, now=PAUSE_S)) == ("p", "d")
    policy.pause("d", PAUSE_S)
    assert pair(decide(candidates, policy=policy, now=PAUSE_S)) == (None, "d")


def test_a_full_replica_is_no_half() -> None:
    assert pair(decide([half("p", "prefill", in_flight=8), busy("d")])) == (None, "d")
    assert decide([half("p", "prefill"), busy("d", in_flight=8)]) is None


def test_sglangs_halves_are_always_a_pair_and_wait_for_each_other() -> None:
    sglang: dict[str, Any] = {"engine": "sglang"}
    first, second = half("p", "prefill", **sglang), half("d", "decode", 2000, **sglang)
    assert pair(decide([first, second])) == ("p", "d")
    assert pair(decide([first, second], make_demand(prompt=make_prompt(8)))) == ("p", "d")
    assert decide([first, half("d", "decode", in_flight=8, **sglang)]) is None
    assert decide([first]) is None
    assert pair(decide([first, second, half("both", None, **sglang)])) == (None, "both")


def test_the_time_before_the_fetch_counts_towards_a_hoped_first_token() -> None:
    slow = half("p", "prefill", prefilling=1, in_flight=1, prefilling_s=0.4, prefilled_at=0.4)
    demand = make_demand(prompt=LONG, slo=Slo(ttft_s=1.2))
    assert pair(decide([slow, busy("d", context_tokens=0)], demand)) == (None, "d")


def test_every_replica_is_explained() -> None:
    view = make_view([half("p", "prefill"), busy("d")])
    found = {each.replica.id: each.excluded for each in splitting().explain(make_demand(prompt=LONG), view)}
    assert found == {"p": "it is there to prefill", "d": None}


@pytest.mark.parametrize("seed", range(20))
def test_a_pair_is_always_of_the_two_roles_and_never_of_one_that_may_not(seed: int) -> None:
    dice = Random(seed)
    for _ in range(50):
        roles: list[Role | None] = ["prefill", "decode", None]
        candidates = [
            half(
                f"r{number}",
                dice.choice(roles),
                16 * dice.randrange(120),
                in_flight=dice.randrange(9),
                context_tokens=dice.randrange(9000),
                engine=dice.choice(["pointsman", "vllm", "sglang"]),
            )
            for number in range(dice.randrange(1, 7))
        ]
        tried = frozenset(each.replica.id for each in candidates if dice.random() < 0.2)
        decision = decide(candidates, make_demand(prompt=LONG, tried=tried))
        if decision is None:
            continue
        used = [decision.replica]
        if isinstance(decision, Handover):
            used.append(decision.prefill.replica)
            assert [each.spec.role for each in used] == ["decode", "prefill"]
            assert used[0].engine == used[1].engine
        assert all(each.id not in tried and each.in_flight < 8 for each in used)
