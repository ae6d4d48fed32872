"""is_public: whether an address belongs to the internet at large, as the fetcher may connect to.

A list of what is allowed, not of what is forbidden: IPv6 that is not global unicast is refused as a
whole, and of the ranges in it that carry IPv4 addresses (NAT64, 6to4, ISATAP) the inner address is
judged, too, since a gateway delivers to that one.
"""

from __future__ import annotations

import ipaddress

_GLOBAL = ipaddress.IPv6Network("2000::/3")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_6TO4 = ipaddress.IPv6Network("2002::/16")
_ISATAP = (0x00005EFE, 0x02005EFE)  # third quarter of the address
# What is_global does not refuse in every Python that is supported: IETF assignments with Teredo
# among them, documentation, anycast of 6to4 relays, and networks for benchmarks and trials.
_REFUSED = tuple(
    ipaddress.ip_network(network)
    for network in (
        *("192.0.0.0/24", "192.88.99.0/24", "198.18.0.0/15", "240.0.0.0/4"),
        *("2001::/23", "2001:db8::/32", "3fff::/20", "3ffe::/16"),
    )
)


def is_public(address: str) -> bool:
    """Whether a numeric address is a public unicast one.

    Args:
        address: IPv4 or IPv6, as the resolver gives it; anything else is not public, an address
            with a zone (``fe80::1%eth0``) neither.
    """
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(found, ipaddress.IPv4Address):
        return _is_plain(found)
    if found.scope_id is not None:
        return False
    inner = int(found) & 0xFFFFFFFF
    if found in _NAT64:
        return _is_plain(ipaddress.IPv4Address(inner))
    if found not in _GLOBAL or not _is_plain(found):  # IPv4-mapped ones end here
        return False
    if found in _6TO4:
        return _is_plain(ipaddress.IPv4Address(int(found) >> 80 & 0xFFFFFFFF))
    if int(found) >> 32 & 0xFFFFFFFF in _ISATAP:
        return _is_plain(ipaddress.IPv4Address(inner))
    return True


def _is_plain(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Nothing that its registry calls special."""
    special = (
        address.is_private
        or address.is_loopback
        or address.is_link_local
        or address.is_multicast
        or address.is_reserved
        or address.is_unspecified
    )
    six_to_four = isinstance(address, ipaddress.IPv6Address) and address in _6TO4
    if special or not (address.is_global or six_to_four):
        return False
    return not any(address in network for network in _REFUSED)
