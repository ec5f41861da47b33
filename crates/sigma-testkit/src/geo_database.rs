//! Small databases of addresses in MaxMind's format (version 2.0), for tests.

use std::net::IpAddr;

/// A database that is being built: networks and their data.
#[derive(Debug, Clone)]
pub struct GeoDatabase {
    kind: String,
    /// Bits of a network's prefix, in the 128 of IPv6, and the record's encoding.
    networks: Vec<(Vec<bool>, Vec<u8>)>,
}

/// The bytes before the metadata.
const MARKER: &[u8] = b"\xab\xcd\xefMaxMind.com";

/// Bytes of zeros between tree and data.
const SEPARATOR: usize = 16;

impl GeoDatabase {
    /// An empty database of this type.
    pub fn new(kind: &str) -> GeoDatabase {
        GeoDatabase { kind: kind.to_owned(), networks: Vec::new() }
    }

    /// Adds a network (CIDR) in a city: the codes and names of the continent, country, region and city in the order
    /// of MaxMind's variables; empty for unknown ones.
    ///
    /// # Panics
    /// Panics if `network` is invalid.
    #[must_use]
    pub fn city(self, network: &str, of: [&str; 6]) -> GeoDatabase {
        let [continent, country, country_name, region, region_name, city] = of;
        let named = |key: &str, code: &str, name: &str| {
            let mut members = Vec::new();
            if !code.is_empty() {
                members.push((key, text(code)));
            }
            if !name.is_empty() {
                members.push(("names", map(vec![("en", text(name))])));
            }
            (!members.is_empty()).then(|| map(members))
        };
        let mut members = Vec::new();
        members.extend(named("code", continent, "").map(|value| ("continent", value)));
        members.extend(named("iso_code", country, country_name).map(|value| ("country", value)));
        members.extend(named("iso_code", region, region_name).map(|one| ("subdivisions", list(vec![one]))));
        members.extend(named("iso_code", "", city).map(|value| ("city", value)));
        self.network(network, map(members))
    }

    /// Adds a network (CIDR) and its owner.
    ///
    /// # Panics
    /// Panics if `network` is invalid.
    #[must_use]
    pub fn owner(self, network: &str, number: u32, organization: &str) -> GeoDatabase {
        let number = ("autonomous_system_number", integer(6, number.into()));
        let record = map(vec![number, ("autonomous_system_organization", text(organization))]);
        self.network(network, record)
    }

    fn network(mut self, network: &str, record: Vec<u8>) -> GeoDatabase {
        let (address, length) = network.split_once('/').expect("a network is ADDRESS/LENGTH");
        let length: usize = length.parse().expect("a length is a number");
        let (bits, length) = match address.parse().expect("a network begins with an address") {
            // The tree has IPv4 at ::/96.
            IpAddr::V4(ip) => (u128::from(u32::from(ip)), length + 96),
            IpAddr::V6(ip) => (u128::from(ip), length),
        };
        let prefix = (0..length).map(|bit| bits >> (127 - bit) & 1 == 1).collect();
        self.networks.push((prefix, record));
        self
    }

    /// Returns the content of the file.
    pub fn content(&self) -> Vec<u8> {
        // One side of a node: empty, another node, or the offset of a record in the data.
        #[derive(Clone, Copy, PartialEq)]
        enum Side {
            Nothing,
            Node(usize),
            Record(usize),
        }
        let (mut nodes, mut data) = (vec![[Side::Nothing; 2]], Vec::new());
        for (prefix, record) in &self.networks {
            let mut node = 0;
            let Some((last, path)) = prefix.split_last() else { continue };
            for bit in path {
                node = match nodes[node][usize::from(*bit)] {
                    Side::Node(next) => next,
                    _ => {
                        nodes.push([Side::Nothing; 2]);
                        let next = nodes.len() - 1;
                        nodes[node][usize::from(*bit)] = Side::Node(next);
                        next
                    }
                };
            }
            nodes[node][usize::from(*last)] = Side::Record(data.len());
            data.extend_from_slice(record);
        }
        let mut file = Vec::new();
        for side in nodes.iter().flatten() {
            let value = match side {
                Side::Nothing => nodes.len(),
                Side::Node(node) => *node,
                Side::Record(at) => nodes.len() + SEPARATOR + at,
            };
            file.extend_from_slice(&(value as u32).to_be_bytes());
        }
        file.extend_from_slice(&[0; SEPARATOR]);
        file.extend_from_slice(&data);
        file.extend_from_slice(MARKER);
        file.extend_from_slice(&map(vec![
            ("node_count", integer(6, nodes.len() as u64)),
            ("record_size", integer(5, 32)),
            ("ip_version", integer(5, 6)),
            ("database_type", text(&self.kind)),
            ("languages", list(vec![text("en")])),
            ("binary_format_major_version", integer(5, 2)),
            ("binary_format_minor_version", integer(5, 0)),
            ("build_epoch", integer(9, 1_700_000_000)),
            ("description", map(vec![("en", text("for tests"))])),
        ]));
        file
    }
}

/// Returns the byte or two before a value; the values of tests are small.
fn control(kind: u8, size: usize) -> Vec<u8> {
    let size = u8::try_from(size).ok().filter(|size| *size < 29).expect("values of tests are small");
    match kind {
        1..8 => vec![kind << 5 | size],
        _ => vec![size, kind - 7],
    }
}

fn text(text: &str) -> Vec<u8> {
    [control(2, text.len()), text.as_bytes().to_vec()].concat()
}

fn integer(kind: u8, number: u64) -> Vec<u8> {
    let bytes = number.to_be_bytes();
    let bytes = &bytes[number.leading_zeros() as usize / 8..];
    [control(kind, bytes.len()), bytes.to_vec()].concat()
}

fn map(members: Vec<(&str, Vec<u8>)>) -> Vec<u8> {
    let mut encoded = control(7, members.len());
    for (name, value) in members {
        // The organization's key is longer than a short size can say.
        encoded.extend(long_text(name));
        encoded.extend(value);
    }
    encoded
}

fn long_text(text: &str) -> Vec<u8> {
    match text.len().checked_sub(29).and_then(|more| u8::try_from(more).ok()) {
        Some(more) => [&[2 << 5 | 29, more], text.as_bytes()].concat(),
        None => self::text(text),
    }
}

fn list(items: Vec<Vec<u8>>) -> Vec<u8> {
    [control(11, items.len()), items.concat()].concat()
}
