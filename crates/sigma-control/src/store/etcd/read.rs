//! Reading many keys at one revision, in pages.

use bytes::Bytes;
use tonic::Status;

use super::client::Client;
use super::link::{Link, Repeat, revision, unsigned};
use super::messages::{KeyValue, RangeRequest};
use crate::store::{Contents, Record, StoreError};

/// Keys per page: with routes of 300 bytes a page is some megabytes.
const PAGE: i64 = 8192;

/// Times that a read is begun again because etcd compacted the revision it was reading.
const RESTARTS: usize = 3;

/// Everything below the prefix.
pub(super) async fn all(link: &Link) -> Result<Contents, StoreError> {
    below(link, "").await
}

/// Everything whose key begins with `prefix`.
pub(super) async fn below(link: &Link, prefix: &str) -> Result<Contents, StoreError> {
    let root = &link.options().prefix;
    let from = format!("{root}/{prefix}").into_bytes();
    let read = |client: Client| pages(client, root.clone(), from.clone());
    let mut restarts = RESTARTS;
    loop {
        match link.through(Repeat::Safe, read).await {
            Err(StoreError::Unavailable(text)) if text.contains("compacted") && restarts > 0 => restarts -= 1,
            result => return result,
        }
    }
}

async fn pages(client: Client, root: String, mut from: Vec<u8>) -> Result<Contents, Status> {
    let end = successor(&from);
    let mut contents = Contents::default();
    loop {
        // The first page names the revision, the others are read at it.
        let at = i64::try_from(contents.revision).unwrap_or(0);
        let page =
            RangeRequest { key: from, range_end: end.clone(), limit: PAGE, revision: at, keys_only: false };
        let answer = client.call(&page).await?;
        if contents.revision == 0 {
            contents.revision = revision(answer.header.as_ref());
        }
        let Some(last) = answer.kvs.last().map(|kv| kv.key.clone()) else { return Ok(contents) };
        contents.records.extend(answer.kvs.into_iter().filter_map(|kv| record(&root, kv)));
        if !answer.more {
            return Ok(contents);
        }
        from = last;
        from.push(0);
    }
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

/// The record in a key and value; None for what is not one. Whether the object is complete is for
/// others to say: one that is not has to be shown as such.
pub(super) fn record(root: &str, kv: KeyValue) -> Option<Record> {
    let (created, modified) = (unsigned(kv.create_revision), unsigned(kv.mod_revision));
    let key = short_key(root, &kv.key)?;
    is_object(&kv.value).then(|| Record { key, value: Bytes::from(kv.value), created, modified })
}

/// Whether it begins like a JSON object.
fn is_object(value: &[u8]) -> bool {
    value.trim_ascii_start().first() == Some(&b'{')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_lose_the_prefix_and_what_is_no_record_is_skipped() {
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
        assert!(is_object(b" \n{}") && !is_object(b"init_dir") && !is_object(b"[]") && !is_object(b""));
        assert_eq!(successor(b"/apisix/"), b"/apisix0");
    }
}
