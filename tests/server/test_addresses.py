"""What the fetcher may connect to."""

from __future__ import annotations

import pytest

from rt_drama3.server.references.addresses import is_public


@pytest.mark.parametrize(
    "address",
    [
        "1.1.1.1",
        "93.184.216.34",
        "2606:4700:4700::1111",
        "64:ff9b::101:101",  # 1.1.1.1 behind NAT64
        "2002:101:101::1",  # and behind 6to4
    ],
)
def test_public(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize(
    "address",
    [
        *(
            "0.0.0.0",
            "0.1.2.3",
            "127.0.0.1",
            "127.9.9.9",
            "10.0.0.1",
            "172.16.0.1",
            "172.31.255.255",
        ),
        *("192.168.1.1", "169.254.169.254", "100.64.0.1", "192.0.0.8", "192.0.2.1", "198.18.0.1"),
        *("192.88.99.1", "203.0.113.5", "224.0.0.1", "239.255.255.250", "240.0.0.1"),
        *(
            "255.255.255.255",
            "::",
            "::1",
            "fe80::1",
            "fe80::1%eth0",
            "fec0::1",
            "fc00::1",
            "fd00::1",
        ),
        *("ff02::1", "2001:db8::1", "3fff::1", "100::1", "5f00::1", "2001::1", "2001:20::1"),
        *("::ffff:127.0.0.1", "::ffff:1.1.1.1", "::127.0.0.1", "::ffff:0:1.1.1.1"),
        *("64:ff9b::7f00:1", "64:ff9b::a00:1", "64:ff9b:1::101:101"),
        *("2002:7f00:1::1", "2002:a00:1::", "2002:c0a8:101::1"),
        *("2606:4700::5efe:127.0.0.1", "2606:4700::200:5efe:10.0.0.1"),
        *("", "localhost", "127.1", "1.1.1.1.", "0x7f.1", "2130706433", "1.1.1.1%1"),
    ],
)
def test_not_public(address: str) -> None:
    assert not is_public(address)
