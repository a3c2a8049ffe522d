"""Questions about stored responses, wrong ones among them."""

import pytest

from tests.router.transports.dialects.rig import Answer, open_rig, whole
from tests.router.transports.responses.rigs import ASK, PATH


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("stream=maybe", "stream"),
        ("stream=true&starting_after=-1", "starting_after"),
        ("stream=true&starting_after=x", "starting_after"),
        ("starting_after=1", "starting_after"),
        ("stream=true&starting_after=999", "starting_after"),
    ],
)
async def test_a_wrong_question_names_its_field(query: str, param: str) -> None:
    async with open_rig() as rig:
        asking = rig.ask(PATH, ASK)
        (await rig.exchange()).answer(200, whole({"content": "one"}))
        id = (await asking).json["id"]
        answer = await rig.fetch("GET", f"{PATH}/{id}?{query}")
        assert (answer.status, answer.json["error"]["param"]) == (400, param)


async def test_input_items_come_in_pages_the_latest_first() -> None:
    async with open_rig() as rig:
        items = [{"role": "user", "content": str(number)} for number in range(5)]
        asking = rig.ask(PATH, {"model": "m", "input": items})
        (await rig.exchange()).answer(200, whole({"content": "one"}))
        address = f"{PATH}/{(await asking).json['id']}/input_items"

        def contents(answer: Answer) -> list[str]:
            return [each["content"] for each in answer.json["data"]]

        page = await rig.fetch("GET", f"{address}?limit=2")
        assert (contents(page), page.json["has_more"]) == (["4", "3"], True)
        page = await rig.fetch("GET", f"{address}?limit=3&after={page.json['last_id']}")
        assert (contents(page), page.json["has_more"]) == (["2", "1", "0"], False)
        assert contents(await rig.fetch("GET", f"{address}?order=asc")) == ["0", "1", "2", "3", "4"]
        for query, param in (("limit=0", "limit"), ("limit=x", "limit"), ("order=up", "order"), ("after=x", "after")):
            wrong = await rig.fetch("GET", f"{address}?{query}")
            assert (wrong.status, wrong.json["error"]["param"]) == (400, param)
