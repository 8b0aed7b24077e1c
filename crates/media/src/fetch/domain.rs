//! Entries of `--allowed-media-domains`.

use std::fmt;
use std::str::FromStr;

use url::Url;

use crate::error::line;
use crate::{Error, Result};

/// A host that images may be fetched from, or all hosts below a domain.
///
/// `images.example.com` is that host alone. `.example.com` is every host whose name ends so, and not `example.com` itself.
/// `:PORT` behind either allows that port; otherwise the ports are 80 and 443.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllowedDomain {
    /// The host as a URL's parser writes it: lower case, without Unicode.
    host: String,
    has_subdomains: bool,
    port: Option<u16>,
}

impl AllowedDomain {
    /// Whether the host of a URL is this one.
    pub(super) fn has_host(&self, host: &str) -> bool {
        match self.has_subdomains {
            false => host == self.host,
            true => host
                .strip_suffix(self.host.as_str())
                .is_some_and(|rest| rest.len() > 1 && rest.ends_with('.')),
        }
    }

    /// Whether the port of a URL may be used.
    pub(super) fn has_port(&self, port: u16) -> bool {
        match self.port {
            Some(only) => port == only,
            None => port == 80 || port == 443,
        }
    }
}

impl FromStr for AllowedDomain {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let bad = || Error::BadDomain(line(text, 100));
        let (rest, has_subdomains) = match text.strip_prefix('.') {
            Some(rest) => (rest, true),
            None => (text, false),
        };
        // The parser of the URLs themselves, so that both have one form. A port of 80 is written as none by `http`.
        let url = Url::parse(&format!("https://{rest}")).map_err(|_| bad())?;
        let is_bare = url.path() == "/" && url.query().is_none() && url.fragment().is_none();
        let is_plain =
            url.username().is_empty() && url.password().is_none() && !rest.ends_with('/');
        let host = url.host_str().filter(|host| !host.is_empty()).ok_or_else(bad)?;
        if !is_bare || !is_plain || rest.contains(['/', '\\', '@']) {
            return Err(bad());
        }
        let has_port = rest.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let is_v6_without_port = rest.ends_with(']');
        let port = if has_port && !is_v6_without_port { url.port_or_known_default() } else { None };
        Ok(Self { host: host.to_owned(), has_subdomains, port })
    }
}

impl fmt::Display for AllowedDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dot = if self.has_subdomains { "." } else { "" };
        write!(f, "{dot}{}", self.host)?;
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_exact_or_below() {
        let exact: AllowedDomain = "Images.Example.com".parse().unwrap();
        let below: AllowedDomain = ".example.com".parse().unwrap();
        for (host, is_exact, is_below) in [
            ("images.example.com", true, true),
            ("a.images.example.com", false, true),
            ("example.com", false, false),
            ("evilexample.com", false, false),
            (".example.com", false, false),
            ("images.example.com.evil.org", false, false),
        ] {
            assert_eq!(exact.has_host(host), is_exact, "{host}");
            assert_eq!(below.has_host(host), is_below, "{host}");
        }
    }

    #[test]
    fn ports_are_the_usual_ones_or_the_named_one() {
        let usual: AllowedDomain = "a.example".parse().unwrap();
        let named: AllowedDomain = "a.example:8080".parse().unwrap();
        let secure: AllowedDomain = "a.example:443".parse().unwrap();
        for (port, expected) in
            [(80, (true, false, false)), (443, (true, false, true)), (8080, (false, true, false))]
        {
            assert_eq!(
                (usual.has_port(port), named.has_port(port), secure.has_port(port)),
                expected
            );
        }
        let v6: AllowedDomain = "[2a00::1]".parse().unwrap();
        assert_eq!(v6.to_string(), "[2a00::1]");
        assert_eq!(
            "[2a00::1]:8080".parse::<AllowedDomain>().unwrap().to_string(),
            "[2a00::1]:8080"
        );
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            ".",
            "https://a.example",
            "a.example/x",
            "u@a.example",
            "a b",
            "*",
            "a:99999",
            "a.example\\x",
        ] {
            let parsed = text.parse::<AllowedDomain>();
            // A star is a host to the parser, and no host has that name.
            assert!(parsed.is_err() || text == "*", "{text}: {parsed:?}");
        }
    }
}
