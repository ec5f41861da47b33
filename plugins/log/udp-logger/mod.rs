//! `udp-logger`: entries in batches as datagrams.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use sigma_plugin::{Build, Configuration, Descriptor};

use sigma_plugin_kit::batch::{self, BatchSettings, Destination, Processor, Refusal, Sending};
use sigma_plugin_kit::log_entry::{self, EntryConfig, Logger};
use sigma_plugin_kit::server::{Host, ServerLocation, UdpServer};

const NAME: &str = "udp-logger";

/// The longest payload of a datagram over IPv4 (RFC 768, RFC 791): 65,535 bytes less both heads.
const LONGEST: usize = 65_507;

/// `udp-logger`.
pub(crate) static UDP_LOGGER: Descriptor = Descriptor {
    name: NAME,
    priority: 400,
    example: include_str!("example.md"),
    build: |build| Ok(Arc::new(logger(build)?)),
    ..super::shipper::<Config>()
};

/// Sends log entries in batches to a server over UDP.
///
/// Each batch is a JSON array in a datagram, or one object with `batch_max_size: 1`. A batch that does not fit into a
/// datagram is sent as several arrays; an entry that alone is too long is dropped and counted. Datagrams may be lost
/// without a report. Requests never wait for it. Entries beyond `max_pending_entries` of the plugin metadata or 64 MiB
/// are dropped. When the gateway stops, it sends the rest of the buffer once.
#[derive(Deserialize, JsonSchema)]
#[schemars(transform = batch::named("udp logger"))]
struct Config {
    #[serde(flatten)]
    entry: EntryConfig,
    /// Host of the server, a name or an address.
    host: Host,
    /// Port of the server.
    #[schemars(range(min = 1))]
    port: u16,
    /// Timeout in seconds, for name resolution and for sending a datagram.
    #[schemars(range(min = 1), extend("default" = 3))]
    timeout: u64,
    #[serde(flatten)]
    batch: BatchSettings,
}

impl Configuration for Config {}

fn logger(build: &Build<'_>) -> Result<Logger<Arc<Processor>>, String> {
    let (config, metadata): (Config, batch::Metadata) = (build.config()?, build.metadata_as()?);
    let timeout = batch::seconds(config.timeout);
    let place = ServerLocation { plugin: NAME, host: config.host, port: config.port, timeout };
    let pending = metadata.max_pending_entries;
    let processor = batch::processor(build, NAME, &config.batch, pending, || {
        let server = UdpServer::new(place, build.node);
        Datagrams { server, single: config.batch.is_single() }
    });
    Ok(Logger::new(config.entry, metadata.formats, processor))
}

/// The server, which gets each batch in as few datagrams as hold it.
struct Datagrams {
    server: UdpServer,
    /// A batch is one entry, and no list.
    single: bool,
}

impl Destination for Datagrams {
    fn send<'s>(&'s self, entries: &'s [Vec<u8>]) -> Sending<'s> {
        Box::pin(async {
            let parts = parts(entries, LONGEST);
            let texts: Vec<Vec<u8>> =
                parts.iter().map(|part| log_entry::json_list(part, self.single)).collect();
            let sent = self.server.send(texts.iter().map(Vec::as_slice)).await;
            sent.map_err(|Refusal { reason, taken }| {
                let taken = parts[..taken].iter().map(|part| part.len()).sum();
                Refusal { reason, taken }
            })
        })
    }
}

/// The entries in runs whose lists have at most `longest` bytes, or one entry.
fn parts(entries: &[Vec<u8>], longest: usize) -> Vec<&[Vec<u8>]> {
    let mut parts = Vec::new();
    let (mut begin, mut length) = (0, 0);
    for (at, entry) in entries.iter().enumerate() {
        // The bracket or the comma before it; and one bracket behind all.
        length += 1 + entry.len();
        if at > begin && length + 1 > longest {
            parts.push(&entries[begin..at]);
            (begin, length) = (at, 1 + entry.len());
        }
    }
    parts.push(&entries[begin..]);
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_as_long_as_a_datagram_may_be_and_no_longer() {
        let check = |entries: &[&str], longest: usize, expected: &[&str]| {
            let entries: Vec<Vec<u8>> = entries.iter().map(|entry| entry.as_bytes().to_vec()).collect();
            let parts = parts(&entries, longest);
            let texts: Vec<String> = parts
                .iter()
                .map(|part| String::from_utf8(log_entry::json_list(part, false)).unwrap())
                .collect();
            assert_eq!(texts, expected, "{longest}");
            assert!(parts.iter().all(|part| !part.is_empty()));
        };
        check(&["11", "22", "33"], 10, &["[11,22,33]"]);
        check(&["11", "22", "33"], 9, &["[11,22]", "[33]"]);
        check(&["11", "22", "33"], 4, &["[11]", "[22]", "[33]"]);
        // An entry that is too long is alone.
        check(&["1", "22222222", "3", "4"], 5, &["[1]", "[22222222]", "[3,4]"]);
        check(&["11"], 1, &["[11]"]);
    }
}
