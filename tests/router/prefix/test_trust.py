"""One disagreement is chance, several in a row are not; and trust comes back as it went."""

from router.prefix.trust import NUM_AGAINST, NUM_FOR, Trust


def test_one_disagreement_says_little_and_several_in_a_row_break_the_trust() -> None:
    trust = Trust()
    for _ in range(NUM_AGAINST - 1):
        trust.disagree("chance")
    assert not trust.is_broken
    trust.agree()
    trust.disagree("chance")
    assert not trust.is_broken
    for _ in range(NUM_AGAINST):
        trust.disagree("another tokenizer")
    assert trust.is_broken
    assert repr(trust) == f"<Trust broken 0 for {NUM_AGAINST + 1} against>"
    assert trust.reason == "another tokenizer"


def test_trust_comes_back_when_it_agrees_again() -> None:
    trust = Trust()
    for _ in range(NUM_AGAINST):
        trust.disagree("x")
    for _ in range(NUM_FOR):
        assert trust.is_broken
        trust.agree()
    assert trust.is_proven
    trust.disagree("x")
    assert not trust.is_proven
