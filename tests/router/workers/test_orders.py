import os

from router.config import Settings
from router.workers import orders
from router.workers.orders import FeedOrders, RouterOrders

SETTINGS = Settings(replica=("http://a,api_key=secret",), workers=2, queue_timeout_s=1.5)


def test_a_process_reads_the_orders_that_it_was_given() -> None:
    given = RouterOrders(SETTINGS, 3, 4, "feed", 1, 2, [[5], [6, 7]], [8, 9])
    descriptor = orders.write(given)
    assert os.fstat(descriptor).st_nlink == 0, "a key must lie in no file"
    assert orders.read_for_router(descriptor) == given
    feed = FeedOrders(SETTINGS, 3, 4, "feed", 5, ["a"])
    assert orders.read_for_feed(orders.write(feed)) == feed
