//! Protocol versions.

use std::fmt;

use rustls::SupportedProtocolVersion;
use rustls::version::{TLS12, TLS13};

use super::Unusable;

/// A negotiated version of TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// RFC 5246
    Tls12,
    /// RFC 8446
    Tls13,
}

impl Version {
    /// Returns its name in OpenSSL and the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Version::Tls12 => "TLSv1.2",
            Version::Tls13 => "TLSv1.3",
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The preferred one is first.
static BOTH: [&SupportedProtocolVersion; 2] = [&TLS13, &TLS12];

/// A set of allowed versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Versions {
    tls12: bool,
    tls13: bool,
}

impl Default for Versions {
    fn default() -> Self {
        Versions::ALL
    }
}

impl Versions {
    /// Every supported version.
    pub const ALL: Versions = Versions { tls12: true, tls13: true };
    /// TLS 1.2 only.
    pub const ONLY_12: Versions = Versions { tls12: true, tls13: false };
    /// TLS 1.3 only.
    pub const ONLY_13: Versions = Versions { tls12: false, tls13: true };

    /// Parses names such as `TLSv1.2`. Older versions are accepted but not offered: their weaknesses cannot be
    /// repaired (RFC 8996). They are returned too, for a warning.
    ///
    /// # Errors
    /// Returns an error if a name is unknown, or if no version is left.
    pub fn from_names<'a>(
        names: impl IntoIterator<Item = &'a str>,
    ) -> Result<(Versions, Vec<&'a str>), Unusable> {
        let mut versions = Versions { tls12: false, tls13: false };
        let mut dropped = Vec::new();
        for name in names {
            match name {
                "TLSv1.2" => versions.tls12 = true,
                "TLSv1.3" => versions.tls13 = true,
                "TLSv1" | "TLSv1.0" | "TLSv1.1" => dropped.push(name),
                _ => {
                    return Err(Unusable::new(format!(
                        "unknown protocol version {name:?}; use TLSv1.2 and TLSv1.3"
                    )));
                }
            }
        }
        if versions.is_empty() {
            return Err(Unusable::new("no supported protocol version is left; add TLSv1.2 or TLSv1.3"));
        }
        Ok((versions, dropped))
    }

    /// Returns the versions in both.
    pub fn and(self, other: Versions) -> Versions {
        Versions { tls12: self.tls12 && other.tls12, tls13: self.tls13 && other.tls13 }
    }

    /// Returns true if the set is empty.
    pub fn is_empty(self) -> bool {
        !self.tls12 && !self.tls13
    }

    pub(super) fn supported(self) -> &'static [&'static SupportedProtocolVersion] {
        match (self.tls12, self.tls13) {
            (true, true) => &BOTH,
            (true, false) => &BOTH[1..],
            (false, true) => &BOTH[..1],
            (false, false) => &[],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_a_set() {
        let check = |names: &[&str], expected: Option<(Versions, usize)>| {
            let versions = Versions::from_names(names.iter().copied());
            assert_eq!(versions.ok().map(|(set, dropped)| (set, dropped.len())), expected, "{names:?}");
        };
        check(&["TLSv1.2", "TLSv1.3"], Some((Versions::ALL, 0)));
        check(&["TLSv1.3"], Some((Versions::ONLY_13, 0)));
        check(&["TLSv1.1", "TLSv1.2"], Some((Versions::ONLY_12, 1)));
        for bad in [&["TLSv1.1"][..], &[], &["SSLv3", "TLSv1.2"], &["tlsv1.2"]] {
            check(bad, None);
        }
        assert!(Versions::ONLY_12.and(Versions::ONLY_13).is_empty());
        assert_eq!(Versions::ALL.and(Versions::ONLY_13), Versions::ONLY_13);
    }
}
