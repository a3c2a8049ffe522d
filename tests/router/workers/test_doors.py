import socket
from pathlib import Path

import pytest

from router.workers import doors


def close(slots: list[list[socket.socket]]) -> None:
    for slot in slots:
        for opened in slot:
            opened.close()


def test_every_slot_has_a_socket_of_its_own_on_the_same_port() -> None:
    slots = doors.listen("127.0.0.1", 0, 3)
    assert len({opened.getsockname() for slot in slots for opened in slot}) == 1
    assert [len(slot) for slot in slots] == [1, 1, 1]
    close(slots)


def test_a_name_with_several_addresses_is_heard_on_each() -> None:
    addresses = {found[4][0] for found in socket.getaddrinfo("localhost", 0, type=socket.SOCK_STREAM)}
    slots = doors.listen("localhost", 0, 2)
    assert all({opened.getsockname()[0] for opened in slot} == addresses for slot in slots)
    close(slots)


def test_a_port_that_others_of_our_kind_share_is_taken() -> None:
    """SO_REUSEPORT alone would let us in without a word."""
    slots = doors.listen("127.0.0.1", 0, 2)
    with pytest.raises(OSError, match="in use"):
        doors.listen("127.0.0.1", slots[0][0].getsockname()[1], 2)
    close(slots)


def test_the_feeds_address_leaves_no_file_and_is_met_by_our_own_user() -> None:
    listener, name = doors.listen_for_feed()
    with listener, doors.connect_to_feed(name) as link:
        accepted, _ = listener.accept()
        with accepted:
            assert doors.peer_is_us(link)
            assert doors.peer_is_us(accepted)
    assert not Path(name).exists()
    with pytest.raises(ConnectionRefusedError):
        doors.connect_to_feed(name)
