//! Addresses that no image is fetched from, because they are not public.
//!
//! Source: the IANA registries of special-purpose addresses for IPv4 and IPv6.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The services of cloud providers that give out credentials, at addresses which look public.
const METADATA: [Ipv4Addr; 1] = [Ipv4Addr::new(168, 63, 129, 16)];

/// IPv4 ranges, as a network, the bits of its prefix, and the reason.
const RANGES: [(Ipv4Addr, u32, &str); 16] = [
    (Ipv4Addr::new(0, 0, 0, 0), 8, "unspecified"),
    (Ipv4Addr::new(10, 0, 0, 0), 8, "private"),
    (Ipv4Addr::new(100, 64, 0, 0), 10, "private"),
    (Ipv4Addr::new(127, 0, 0, 0), 8, "loopback"),
    (Ipv4Addr::new(169, 254, 0, 0), 16, "link-local"),
    (Ipv4Addr::new(172, 16, 0, 0), 12, "private"),
    (Ipv4Addr::new(192, 0, 0, 0), 24, "reserved"),
    (Ipv4Addr::new(192, 0, 2, 0), 24, "reserved"),
    (Ipv4Addr::new(192, 31, 196, 0), 24, "reserved"),
    (Ipv4Addr::new(192, 88, 99, 0), 24, "reserved"),
    (Ipv4Addr::new(192, 168, 0, 0), 16, "private"),
    (Ipv4Addr::new(198, 18, 0, 0), 15, "reserved"),
    (Ipv4Addr::new(198, 51, 100, 0), 24, "reserved"),
    (Ipv4Addr::new(203, 0, 113, 0), 24, "reserved"),
    (Ipv4Addr::new(224, 0, 0, 0), 4, "multicast"),
    (Ipv4Addr::new(240, 0, 0, 0), 4, "reserved"),
];

/// The reason why nothing is fetched from an address; `None` for a public one.
pub fn address_refusal(address: IpAddr) -> Option<&'static str> {
    match address {
        IpAddr::V4(address) => v4(address),
        IpAddr::V6(address) => v6(address),
    }
}

fn v4(address: Ipv4Addr) -> Option<&'static str> {
    if METADATA.contains(&address) {
        return Some("a metadata service");
    }
    let is_within = |network: Ipv4Addr, bits: u32| {
        (address.to_bits() ^ network.to_bits()).leading_zeros() >= bits
    };
    RANGES.into_iter().find(|(network, bits, _)| is_within(*network, *bits)).map(|row| row.2)
}

fn v6(address: Ipv6Addr) -> Option<&'static str> {
    if address.is_unspecified() {
        return Some("unspecified");
    }
    if address.is_loopback() {
        return Some("loopback");
    }
    // Within these an IPv4 address is hidden, which a gateway or the system would connect to.
    if address.to_ipv4_mapped().is_some() {
        return Some("IPv4-mapped");
    }
    match address.segments() {
        [0x64, 0xff9b, ..] => Some("NAT64"),
        [0x2002, ..] => Some("6to4"),
        [0x2001, 0, ..] => Some("Teredo"),
        [first, ..] if first & 0xfe00 == 0xfc00 => Some("unique local"),
        [first, ..] if first & 0xff80 == 0xfe80 => Some("link-local"),
        [first, ..] if first & 0xff00 == 0xff00 => Some("multicast"),
        // Protocol assignments, documentation, and all that is not global unicast.
        [0x2001, second, ..] if second < 0x200 || second == 0xdb8 => Some("reserved"),
        [0x3fff, ..] => Some("reserved"),
        [first, ..] if first & 0xe000 != 0x2000 => Some("reserved"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_public_addresses_pass() {
        for (address, reason) in [
            ("0.0.0.0", "unspecified"),
            ("0.1.2.3", "unspecified"),
            ("10.255.255.255", "private"),
            ("100.64.0.1", "private"),
            ("100.100.100.200", "private"),
            ("127.0.0.1", "loopback"),
            ("127.255.0.9", "loopback"),
            ("168.63.129.16", "a metadata service"),
            ("169.254.169.254", "link-local"),
            ("172.16.0.1", "private"),
            ("172.31.255.255", "private"),
            ("192.168.1.1", "private"),
            ("198.19.0.1", "reserved"),
            ("224.0.0.1", "multicast"),
            ("239.255.255.255", "multicast"),
            ("240.0.0.1", "reserved"),
            ("255.255.255.255", "reserved"),
            ("::", "unspecified"),
            ("::1", "loopback"),
            ("::7f00:1", "reserved"),
            ("::ffff:127.0.0.1", "IPv4-mapped"),
            ("::ffff:8.8.8.8", "IPv4-mapped"),
            ("64:ff9b::a9fe:a9fe", "NAT64"),
            ("64:ff9b:1::a9fe:a9fe", "NAT64"),
            ("2002:7f00:1::", "6to4"),
            ("2001:0:4136:e378::", "Teredo"),
            ("2001:db8::1", "reserved"),
            ("3fff::1", "reserved"),
            ("fc00::1", "unique local"),
            ("fd00:ec2::254", "unique local"),
            ("fe80::1", "link-local"),
            ("fec0::1", "link-local"),
            ("ff02::1", "multicast"),
            ("4000::1", "reserved"),
        ] {
            assert_eq!(address_refusal(address.parse().unwrap()), Some(reason), "{address}");
        }
        for address in
            ["1.1.1.1", "100.128.0.1", "172.32.0.1", "9.9.9.9", "2606:4700::1111", "2a00::1"]
        {
            assert_eq!(address_refusal(address.parse().unwrap()), None, "{address}");
        }
    }
}
