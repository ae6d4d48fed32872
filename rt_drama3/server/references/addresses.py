"""is_public: whether an address is on the public internet, so that the fetcher may connect to it.

An allow list: all IPv6 that is not global unicast is refused, and in the ranges that embed IPv4
addresses (NAT64, 6to4, ISATAP) the inner address is checked, too, since a gateway forwards to it.
"""

from __future__ import annotations

import ipaddress

_GLOBAL = ipaddress.IPv6Network("2000::/3")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_6TO4 = ipaddress.IPv6Network("2002::/16")
_ISATAP = (0x00005EFE, 0x02005EFE)  # third quarter of the address
# Not refused by is_global in every supported Python: IETF assignments (with Teredo), documentation,
# 6to4 relay anycast, and networks for benchmarks and trials.
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
        address: IPv4 or IPv6, as the resolver returns it; anything else is not public, nor is an
            address with a zone (``fe80::1%eth0``).
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
    if found not in _GLOBAL or not _is_plain(found):  # including IPv4-mapped ones
        return False
    if found in _6TO4:
        return _is_plain(ipaddress.IPv4Address(int(found) >> 80 & 0xFFFFFFFF))
    if int(found) >> 32 & 0xFFFFFFFF in _ISATAP:
        return _is_plain(ipaddress.IPv4Address(inner))
    return True


def _is_plain(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Whether it is in none of the special registries."""
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
