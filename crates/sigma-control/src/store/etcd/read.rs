//! Reading many keys at one revision, in pages.

use tonic::Status;

use super::PLACEHOLDER;
use super::client::Client;
use super::keys::Keys;
use super::link::{Link, Repeat, revision, unsigned};
use super::messages::{KeyValue, RangeRequest};
use crate::store::{Contents, Record, StoreError};

/// Keys of the first page, whose size is not known before.
const FIRST_PAGE: i64 = 256;

/// Keys of a page at most: etcd holds up other requests while it collects them.
const LONGEST_PAGE: i64 = 8192;

/// Bytes of keys and values that a page should have: the next one has as many keys as would have
/// made this one so long. It is in memory twice for a moment, as etcd sent it and as records.
const PAGE_BYTES: usize = 4 << 20;

/// Times that a read is begun again because etcd compacted the revision it was reading.
const RESTARTS: usize = 3;

/// All that was read.
#[derive(Debug, Default)]
pub(super) struct Everything {
    pub(super) contents: Contents,
    pub(super) keys: Keys,
    /// The connection that it came over.
    pub(super) connection: u64,
}

/// Everything below the prefix.
pub(super) async fn all(link: &Link) -> Result<Everything, StoreError> {
    below(link, "").await
}

/// Everything whose key begins with `prefix`.
pub(super) async fn below(link: &Link, prefix: &str) -> Result<Everything, StoreError> {
    let root = link.options().prefix.as_str();
    let from = format!("{root}/{prefix}").into_bytes();
    let read = |client: Client| everything(client, root, from.clone());
    let mut restarts = RESTARTS;
    loop {
        match link.through(Repeat::Safe, read).await {
            Ok((everything, connection)) => return Ok(Everything { connection, ..everything }),
            Err(StoreError::Unavailable(text)) if text.contains("compacted") && restarts > 0 => restarts -= 1,
            Err(error) => return Err(error),
        }
    }
}

async fn everything(client: Client, root: &str, from: Vec<u8>) -> Result<Everything, Status> {
    let mut everything = Everything::default();
    let mut pages = Pages::new(&client, from, 0, What::All);
    while let Some(page) = pages.next().await? {
        for kv in page {
            if let Some(key) = short_key(root, &kv.key) {
                everything.keys.put(&key, unsigned(kv.mod_revision));
                everything.contents.records.extend(record(key, kv));
            }
        }
    }
    everything.contents.revision = pages.revision;
    Ok(everything)
}

/// The keys below the prefix as they were at `revision`, or are, if that is 0; comparable with `like`.
pub(super) async fn keys(client: &Client, root: &str, at: u64, like: &Keys) -> Result<Keys, Status> {
    let mut keys = like.like();
    let mut pages = Pages::new(client, format!("{root}/").into_bytes(), at, What::Keys);
    while let Some(page) = pages.next().await? {
        for kv in page {
            if let Some(key) = short_key(root, &kv.key) {
                keys.put(&key, unsigned(kv.mod_revision));
            }
        }
    }
    Ok(keys)
}

/// The content of a page.
#[derive(Debug, Clone, Copy, PartialEq)]
enum What {
    All,
    Keys,
}

/// A range of keys, read in pages at one revision.
struct Pages<'a> {
    client: &'a Client,
    /// None after the last page.
    from: Option<Vec<u8>>,
    end: Vec<u8>,
    /// 0 until the first page has named it.
    revision: u64,
    limit: i64,
    what: What,
}

impl<'a> Pages<'a> {
    fn new(client: &'a Client, prefix: Vec<u8>, revision: u64, what: What) -> Pages<'a> {
        let end = successor(&prefix);
        Pages { client, from: Some(prefix), end, revision, limit: FIRST_PAGE, what }
    }

    async fn next(&mut self) -> Result<Option<Vec<KeyValue>>, Status> {
        let Some(from) = self.from.take() else { return Ok(None) };
        let request = RangeRequest {
            key: from,
            range_end: self.end.clone(),
            limit: self.limit,
            revision: i64::try_from(self.revision).unwrap_or(i64::MAX),
            keys_only: self.what == What::Keys,
        };
        let answer = self.client.call(&request).await?;
        if self.revision == 0 {
            self.revision = revision(answer.header.as_ref());
        }
        if answer.more {
            self.from = answer.kvs.last().map(|last| [&last.key[..], &[0]].concat());
            self.limit = page_length(&answer.kvs);
        }
        Ok(Some(answer.kvs))
    }
}

/// How many keys make a page of the size that is wanted, if they are like these.
fn page_length(page: &[KeyValue]) -> i64 {
    let bytes: usize = page.iter().map(|kv| kv.key.len() + kv.value.len()).sum();
    let wanted = page.len().saturating_mul(PAGE_BYTES) / bytes.max(1);
    i64::try_from(wanted).unwrap_or(LONGEST_PAGE).clamp(1, LONGEST_PAGE)
}

/// The first key after all that begin with `prefix`, which ends with a byte below 255: keys are
/// texts.
pub(super) fn successor(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    if let Some(last) = end.last_mut() {
        *last = last.saturating_add(1);
    }
    end
}

/// The key below the prefix; None if it is not there or no text.
pub(super) fn short_key(root: &str, key: &[u8]) -> Option<String> {
    let key = std::str::from_utf8(key).ok()?.strip_prefix(root)?.strip_prefix('/')?;
    // A placeholder is named after its directory, with the slash.
    (!key.is_empty() && !key.ends_with('/') && key != super::ID_KEY).then(|| key.to_owned())
}

/// The record of a key and its value; None for the placeholder of a directory. Whether the value is
/// any good is for others to say: what overwrites a record is not its deletion.
pub(super) fn record(key: String, kv: KeyValue) -> Option<Record> {
    let is_placeholder = !key.contains('/') && kv.value == PLACEHOLDER.as_bytes();
    let (created, modified) = (unsigned(kv.create_revision), unsigned(kv.mod_revision));
    (!is_placeholder).then(|| Record { key, value: kv.value.into(), created, modified })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_lose_the_prefix_and_non_records_are_skipped() {
        let check = |key: &str, expected: Option<&str>| {
            assert_eq!(short_key("/apisix", key.as_bytes()).as_deref(), expected, "{key}");
        };
        check("/apisix/routes/1", Some("routes/1"));
        check("/apisix/consumers/jack/credentials/c", Some("consumers/jack/credentials/c"));
        check("/apisix/plugins", Some("plugins"));
        for skipped in ["/apisix/routes/", "/apisix/gen_id", "/apisix", "/apisix/", "/apisix2/routes/1"] {
            check(skipped, None);
        }
        assert_eq!(short_key("/apisix", b"/apisix/routes/\xff"), None);
        let check = |key: &str, value: &[u8], expected: bool| {
            let kv = KeyValue { value: value.into(), ..KeyValue::default() };
            assert_eq!(record(key.to_owned(), kv).is_some(), expected, "{key}");
        };
        check("routes", b"init_dir", false);
        for value in [&b"{}"[..], b"init_dir", b"[]", b"", b"\xff"] {
            check("routes/1", value, true);
        }
        assert_eq!(successor(b"/apisix/"), b"/apisix0");
    }

    #[test]
    fn pages_are_as_long_as_their_values_allow() {
        let check = |count: usize, bytes: usize, expected: i64| {
            let kv = KeyValue { value: vec![b'x'; bytes], ..KeyValue::default() };
            assert_eq!(page_length(&vec![kv; count]), expected, "{count} of {bytes} bytes");
        };
        check(256, 0, LONGEST_PAGE);
        check(256, 300, LONGEST_PAGE);
        check(256, 1 << 12, 1 << 10);
        check(2, 1 << 20, 4);
        check(1, 5 << 20, 1);
        check(0, 0, 1);
    }
}
