"""Claims of loopback addresses: real sockets."""

from __future__ import annotations

import socket

from bringup.lab.addresses import NETWORK, claim


def test_two_claims_take_different_addresses_and_a_closed_one_is_free_again() -> None:
    first = claim(2)
    second = claim(2)
    try:
        assert not {c.address for c in first} & {c.address for c in second}
        assert all(c.address.startswith(NETWORK + ".") for c in first + second)
        wanted = [(c.address, c.port) for c in first]
        for item in first:
            item.close()
        first = claim(2, wanted)
        assert [(c.address, c.port) for c in first] == wanted
    finally:
        for item in first + second:
            item.close()


def test_a_taken_port_is_passed_over_for_an_address_that_was_ours() -> None:
    probe = claim(1)[0]
    address, port = probe.address, probe.port
    probe.close()
    with socket.socket() as taken:
        taken.bind((address, port))
        taken.listen()
        again = claim(1, [(address, port)])[0]
        try:
            assert again.address == address and again.port != port
        finally:
            again.close()


def test_a_new_address_where_something_listens_is_passed_over() -> None:
    probe = claim(1)[0]
    address = probe.address
    probe.close()
    with socket.socket() as engine:
        engine.bind((address, 0))
        engine.listen()
        other = claim(1)[0]
        try:
            assert other.address != address
        finally:
            other.close()
