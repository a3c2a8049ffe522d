"""Numbers of batches: what follows, what was missed, and when an engine began anew."""

from router.prefix.sequence import Sequence, Step


def took(*numbers: int) -> Sequence:
    sequence = Sequence()
    for number in numbers:
        sequence.see(number)
        sequence.take(number, b"%d" % number)
    return sequence


def test_a_stream_from_its_beginning_has_no_gap() -> None:
    sequence = Sequence()
    for number in range(5):
        assert sequence.see(number) is Step.NEXT
        sequence.take(number, b"")
    assert sequence.wanted == 5


def test_a_stream_joined_late_begins_with_a_gap() -> None:
    assert Sequence().see(7) is Step.GAP


def test_a_lost_batch_is_a_gap_until_it_was_had_again() -> None:
    sequence = took(0, 1)
    assert sequence.see(4) is Step.GAP
    for number in (2, 3, 4):
        sequence.take(number, b"")
    assert sequence.see(5) is Step.NEXT


def test_what_was_replayed_before_it_came_is_old() -> None:
    sequence = took(0)
    for number in (1, 2, 3):
        sequence.take(number, b"")
    assert [sequence.see(number) for number in (1, 2, 3, 4)] == [Step.OLD, Step.OLD, Step.OLD, Step.NEXT]


def test_a_number_that_goes_back_is_another_life_of_the_engine() -> None:
    assert took(0, 1, 2).see(0) is Step.RESTART
    assert took(0, 1, 2).see(2) is Step.RESTART
    sequence = took(0, 1, 2)
    sequence.see(1)
    sequence.restart()
    assert (sequence.last, sequence.wanted) == (None, 0)


def test_the_same_number_with_other_content_is_another_life() -> None:
    sequence = took(0, 1)
    assert sequence.is_last(b"1")
    assert not sequence.is_last(b"x")


def test_what_cannot_be_had_is_skipped() -> None:
    sequence = took(0, 1)
    sequence.skip_to(9)
    assert sequence.wanted == 9
    assert sequence.see(9) is Step.NEXT
    sequence.skip_to(0)
    assert sequence.wanted == 0
    assert repr(sequence) == "<Sequence at None>"
