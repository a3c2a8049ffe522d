import itertools

import pytest

from engine.sequence import TRANSITIONS, FinishReason, Sequence, SequenceState
from tests.engine.requests import request


@pytest.mark.parametrize(("before", "after"), list(itertools.product(SequenceState, SequenceState)))
def test_only_the_transitions_of_the_table_are_taken(before: SequenceState, after: SequenceState) -> None:
    sequence = Sequence(request(), order=(0, 0), state=before)
    if after in TRANSITIONS[before]:
        sequence.move(after)
        assert sequence.state is after
    else:
        with pytest.raises(RuntimeError, match=f"cannot become {after.name}"):
            sequence.move(after)


def test_a_finished_sequence_says_why_and_how_far_it_came() -> None:
    sequence = Sequence(request(range(5), name="a"), order=(0, 0))
    sequence.tokens.append(9)
    sequence.finish(FinishReason.LENGTH)
    assert sequence.finish_reason is FinishReason.LENGTH
    assert sequence.num_output_tokens == 1
    assert repr(sequence) == "<Sequence a FINISHED 0/6 tokens 0 blocks>"


def test_hashes_of_a_prefix_do_not_change_as_the_sequence_grows() -> None:
    sequence = Sequence(request(range(8)), order=(0, 0))
    before = sequence.hashes(2, 4)
    sequence.tokens += [8, 9, 10, 11]
    assert sequence.hashes(3, 4)[:2] == before
    assert sequence.hashes(2, 4) == before


def test_the_salt_parts_equal_prompts() -> None:
    plain, salted = (Sequence(request(range(8), salt=salt), order=(0, 0)) for salt in (None, "tenant"))
    assert not set(plain.hashes(2, 4)) & set(salted.hashes(2, 4))
