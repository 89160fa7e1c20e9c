"""The addresses of peers in one spelling, so that rules and quotas find them however they were written."""

from __future__ import annotations

import ipaddress
from functools import lru_cache

_MAPPED = ipaddress.IPv6Network("::ffff:0:0/96")


@lru_cache(maxsize=4096)
def normal_address(text: str) -> str:
    """An IPv4 address that was mapped to IPv6 is itself, and an IPv6 address is compressed. Other text stays as it is."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return text
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(address)


def is_address(text: str) -> bool:
    """Whether the text is an address, not the name of a host."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


@lru_cache(maxsize=4096)
def parse_network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    """A range such as `10.0.0.0/8`, in the spelling of `normal_address`; None where the text is none."""
    try:
        network = ipaddress.ip_network(text, strict=False)
    except ValueError:
        return None
    if isinstance(network, ipaddress.IPv6Network) and network.subnet_of(_MAPPED):
        first = network.network_address.ipv4_mapped
        assert first is not None
        return ipaddress.IPv4Network((first, network.prefixlen - _MAPPED.prefixlen))
    return network


def is_inside(address: str, text: str) -> bool:
    """Whether an address lies in a range of addresses."""
    network = parse_network(text)
    if network is None:
        return False
    try:
        return ipaddress.ip_address(normal_address(address)) in network
    except ValueError:
        return False
