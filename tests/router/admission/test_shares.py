import pytest

from router.admission.bands import BandTerms
from router.admission.shares import Shares

ALL = [0, 1, 2, 3]


def run(shares: Shares, num_grants: int, tokens: float = 10.0, wait_s: float = 0.0) -> list[int]:
    """Everybody always waits: which band each grant went to."""
    granted = []
    for _ in range(num_grants):
        rank = shares.order(ALL)[0]
        granted.append(rank)
        shares.served(rank, tokens, [wait_s] * 4)
    return granted


def test_each_band_gets_its_least_share_and_the_highest_the_rest() -> None:
    granted = run(Shares(BandTerms(min_shares=(0.0, 0.2, 0.1, 0.05))), 4000)
    shares = [granted.count(rank) / 4000 for rank in ALL]
    assert shares == pytest.approx([0.65, 0.2, 0.1, 0.05], abs=0.01)


def test_one_band_alone_gathers_no_debt_that_it_pays_later() -> None:
    shares = Shares(BandTerms(min_shares=(0.0, 0.0, 0.0, 0.1)))
    for _ in range(1000):
        shares.served(3, 10.0, [None, None, None, 0.0])
    granted = run(shares, 200)
    assert granted.count(3) >= 18


def test_credit_is_not_saved_up() -> None:
    shares = Shares(BandTerms(min_shares=(0.0, 0.0, 0.0, 0.1)))
    for _ in range(1000):
        shares.served(0, 10.0, [0.0, None, None, 0.0])  # the fourth cannot be placed
    granted = run(shares, 100)
    assert granted.count(3) < 20


@pytest.mark.parametrize(
    "wrong",
    [
        {"min_shares": (0.5, 0.5, 0.5, 0.5)},
        {"min_shares": (0.1,)},
        {"min_shares": (-0.1, 0, 0, 0)},
        {"max_waits_s": (0.0, 1.0, 1.0, 1.0)},
    ],
)
def test_terms_that_contradict_themselves_are_refused(wrong: dict[str, tuple[float, ...]]) -> None:
    with pytest.raises(ValueError, match=r"share|wait|bands"):
        BandTerms(**wrong)  # type: ignore[arg-type]
