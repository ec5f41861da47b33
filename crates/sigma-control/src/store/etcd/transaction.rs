//! Transactions in etcd, which takes no more than 128 operations in one, unless they are nested.
//!
//! etcd lets a transaction contain transactions, and then counts the operations along each path. Sixty-four
//! of sixty-four writes fit, so a transaction of up to 4096 writes is carried out in one revision. Larger
//! ones are split; the parts have different revisions.

use std::collections::{BTreeSet, HashMap, HashSet};

use super::link::{Link, Repeat, revision};
use super::messages::{
    Compare, DeleteRangeRequest, LeaseGrantRequest, LeaseRevokeRequest, LeaseTimeToLiveRequest, Operation,
    PutRequest, RequestOp, TxnRequest, TxnResponse,
};
use super::{PLACEHOLDER, read};
use crate::store::{Condition, Record, StoreError, Transaction, Write};

/// Half of etcd's default for `--max-txn-ops`.
const HALF: usize = 64;

/// Bytes of keys and values in one transaction, below etcd's default of 1.5 MiB for a request.
const PART_BYTES: usize = 1 << 20;

/// Carries out a transaction; returns the revision of its last part.
pub(super) async fn commit(link: &Link, transaction: Transaction) -> Result<u64, StoreError> {
    let writes = last_of_each_key(transaction.writes);
    let total = writes.len();
    let (parts, conditions) = split(Transaction { conditions: transaction.conditions.clone(), writes });
    if conditions == Conditions::BeforeAll {
        check_all(link, &transaction.conditions).await?;
    }
    let (mut done, mut newest) = (0, 0);
    for part in parts {
        let count = part.writes.len();
        newest = match commit_part(link, part).await {
            Ok(revision) => revision,
            Err(error) if done == 0 => return Err(error),
            Err(error) => {
                return Err(StoreError::Unavailable(format!(
                    "{done} of {total} writes were done, then: {error}; repeat the whole write"
                )));
            }
        };
        done += count;
    }
    Ok(newest)
}

/// etcd refuses a transaction that writes a key twice.
fn last_of_each_key(mut writes: Vec<Write>) -> Vec<Write> {
    let mut seen = HashSet::new();
    writes.reverse();
    writes.retain(|write| seen.insert(write.key().to_owned()));
    writes.reverse();
    writes
}

/// When the conditions of a transaction are checked.
#[derive(Debug, PartialEq)]
enum Conditions {
    /// By etcd, in the one part that there is.
    Within,
    /// By a read before the first part as well, so that a conflict is found while nothing is written.
    BeforeAll,
}

/// As few parts as etcd's limits allow. Each carries the conditions on the keys that it writes; the
/// first also those on other keys, as far as they fit.
fn split(transaction: Transaction) -> (Vec<Transaction>, Conditions) {
    let mut on_written: HashMap<String, Vec<Condition>> = HashMap::new();
    let written: HashSet<&str> = transaction.writes.iter().map(Write::key).collect();
    let mut first = Transaction::default();
    for condition in transaction.conditions {
        if written.contains(condition.key()) {
            on_written.entry(condition.key().to_owned()).or_default().push(condition);
        } else {
            first.conditions.push(condition);
        }
    }
    // A part must keep room for a write and its conditions.
    let surplus = first.conditions.len() > HALF - 2;
    first.conditions.truncate(HALF - 2);
    let mut parts = vec![first];
    let mut bytes = 0;
    for write in transaction.writes {
        let size = size(&write);
        let conditions = on_written.remove(write.key()).unwrap_or_default();
        let part = parts.last().map_or((0, 0), |part| (part.writes.len(), part.conditions.len()));
        let full = part.0 == HALF * HALF || part.1 + conditions.len() > HALF || bytes + size > PART_BYTES;
        if full && part.0 > 0 {
            parts.push(Transaction::default());
            bytes = 0;
        }
        bytes += size;
        if let Some(part) = parts.last_mut() {
            part.conditions.extend(conditions);
            part.writes.push(write);
        }
    }
    let whole = parts.len() == 1 && !surplus;
    (parts, if whole { Conditions::Within } else { Conditions::BeforeAll })
}

fn size(write: &Write) -> usize {
    // The framing of an operation takes some bytes too.
    let value = match write {
        Write::Put { value, .. } => value.len(),
        Write::Delete { .. } => 0,
    };
    write.key().len() + value + 64
}

async fn check_all(link: &Link, conditions: &[Condition]) -> Result<(), StoreError> {
    let contents = read::all(link).await?.contents;
    let records: HashMap<&str, &Record> =
        contents.records.iter().map(|record| (record.key.as_str(), record)).collect();
    let holds = |condition: &Condition| condition.holds(records.get(condition.key()).copied());
    if conditions.iter().all(holds) { Ok(()) } else { Err(StoreError::Conflict) }
}

async fn commit_part(link: &Link, part: Transaction) -> Result<u64, StoreError> {
    let leases = grant(link, &part.writes).await?;
    let request = request(&link.options().prefix, &part, &leases);
    // Without a condition the writes can be repeated: they have the same effect.
    let repeat = if part.conditions.is_empty() { Repeat::Safe } else { Repeat::Unsafe };
    let response = match link.call(repeat, &request).await {
        Ok(response) if response.succeeded => response,
        Ok(_) => {
            revoke(link, leases.into_values()).await;
            return Err(StoreError::Conflict);
        }
        // Where it is not known whether the write happened, its lease must stay.
        Err(error) => return Err(error),
    };
    let replaced = replaced_leases(&response);
    if !replaced.is_empty() {
        revoke_unused(link, replaced).await;
    }
    Ok(revision(response.header.as_ref()))
}

/// One lease for each time to live, in seconds.
async fn grant(link: &Link, writes: &[Write]) -> Result<HashMap<i64, i64>, StoreError> {
    let mut leases = HashMap::new();
    let times: BTreeSet<i64> = writes.iter().filter_map(ttl_seconds).collect();
    for seconds in times {
        let answer = link.call(Repeat::Safe, &LeaseGrantRequest { ttl: seconds }).await?;
        leases.insert(seconds, answer.id);
    }
    Ok(leases)
}

/// A lease lives for whole seconds, and for one at least.
fn ttl_seconds(write: &Write) -> Option<i64> {
    let Write::Put { ttl: Some(ttl), .. } = write else { return None };
    let rounded = ttl.as_secs().saturating_add(u64::from(ttl.subsec_nanos() > 0));
    // etcd's longest, some 285 years.
    Some(i64::try_from(rounded).unwrap_or(i64::MAX).clamp(1, 9_000_000_000))
}

fn request(root: &str, part: &Transaction, leases: &HashMap<i64, i64>) -> TxnRequest {
    let compare = part.conditions.iter().map(|condition| compare(root, condition)).collect();
    let few = part.writes.len() <= HALF;
    let operations = part.writes.iter().map(|write| match write {
        Write::Put { key, value, .. } => {
            let lease = ttl_seconds(write).and_then(|seconds| leases.get(&seconds)).copied();
            Operation::Put(PutRequest {
                key: format!("{root}/{key}").into(),
                value: value.to_vec(),
                lease: lease.unwrap_or(0),
                // The old value comes back for its lease; in bulk that is not worth the bytes.
                prev_kv: few,
            })
        }
        Write::Delete { key } => {
            Operation::Delete(DeleteRangeRequest { key: format!("{root}/{key}").into() })
        }
    });
    let operations: Vec<RequestOp> = operations.map(RequestOp::from).collect();
    let nested = |chunk: &[RequestOp]| {
        RequestOp::from(Operation::Txn(TxnRequest { compare: Vec::new(), success: chunk.to_vec() }))
    };
    let success = if few { operations } else { operations.chunks(HALF).map(nested).collect() };
    TxnRequest { compare, success }
}

fn compare(root: &str, condition: &Condition) -> Compare {
    let key = format!("{root}/{}", condition.key());
    match condition {
        Condition::Absent { .. } => Compare::absent(key),
        Condition::ModifiedAt { revision, .. } => {
            // No key has a revision beyond etcd's range, so the comparison fails as it should.
            let revision = i64::try_from(*revision).unwrap_or(i64::MAX);
            Compare::modified_at(key, revision)
        }
    }
}

fn replaced_leases(response: &TxnResponse) -> BTreeSet<i64> {
    let old = response.responses.iter().filter_map(|answer| answer.put.as_ref()?.prev_kv.as_ref());
    old.map(|kv| kv.lease).filter(|lease| *lease != 0).collect()
}

/// A lease that is left would only take up room until it ends, so nothing depends on success here.
async fn revoke(link: &Link, leases: impl Iterator<Item = i64>) {
    for lease in leases {
        if let Err(error) = link.call(Repeat::Safe, &LeaseRevokeRequest { id: lease }).await {
            tracing::debug!(%error, lease, "cannot revoke a lease; it expires by itself");
        }
    }
}

/// Revokes leases without keys: others may be shared.
async fn revoke_unused(link: &Link, leases: BTreeSet<i64>) {
    for lease in leases {
        let ask = LeaseTimeToLiveRequest { id: lease, keys: true };
        if link.call(Repeat::Safe, &ask).await.is_ok_and(|answer| answer.keys.is_empty()) {
            revoke(link, std::iter::once(lease)).await;
        }
    }
}

/// Puts the placeholder at each key that does not exist.
pub(super) fn placeholders(keys: impl Iterator<Item = String>) -> TxnRequest {
    let put = |key: String| {
        let compare = vec![Compare::absent(key.clone())];
        let put = PutRequest { key: key.into(), value: PLACEHOLDER.into(), ..PutRequest::default() };
        Operation::Txn(TxnRequest { compare, success: vec![Operation::Put(put).into()] }).into()
    };
    TxnRequest { compare: Vec::new(), success: keys.map(put).collect() }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn put(number: usize, bytes: usize) -> Write {
        Write::Put { key: format!("routes/{number}"), value: vec![b'x'; bytes].into(), ttl: None }
    }

    #[test]
    fn transactions_are_split_where_etcd_would_refuse_them() {
        let check = |writes: Vec<Write>, conditions: usize, before: u8, parts: &[(usize, usize)]| {
            let conditions = (0..conditions).map(|n| Condition::Absent { key: format!("routes/{n}") });
            let (split, checked) = split(Transaction { conditions: conditions.collect(), writes });
            assert_eq!(checked == Conditions::Within, before == 0);
            let counts: Vec<_> =
                split.iter().map(|part| (part.conditions.len(), part.writes.len())).collect();
            assert_eq!(counts, parts);
        };
        let small = |count| (0..count).map(|number| put(number, 10)).collect::<Vec<_>>();
        check(vec![], 0, 0, &[(0, 0)]);
        check(vec![], 3, 0, &[(3, 0)]);
        check(small(4096), 0, 0, &[(0, 4096)]);
        check(small(4097), 0, 1, &[(0, 4096), (0, 1)]);
        check(small(100), 100, 1, &[(64, 64), (36, 36)]);
        check(vec![], 100, 1, &[(62, 0)]);
        let large = (0..3).map(|number| put(number, 700_000)).collect();
        check(large, 3, 1, &[(1, 1), (1, 1), (1, 1)]);
    }

    #[test]
    fn the_last_write_of_a_key_counts() {
        let gone = Write::Delete { key: "routes/1".into() };
        let writes = last_of_each_key(vec![put(1, 1), put(2, 1), gone.clone()]);
        assert_eq!(writes, [put(2, 1), gone]);
    }

    #[test]
    fn times_to_live_are_whole_seconds() {
        let check = |ttl: Option<Duration>, expected: Option<i64>| {
            let write = Write::Put { key: "k".into(), value: "{}".into(), ttl };
            assert_eq!(ttl_seconds(&write), expected, "{ttl:?}");
        };
        check(None, None);
        check(Some(Duration::ZERO), Some(1));
        check(Some(Duration::from_millis(1001)), Some(2));
        check(Some(Duration::MAX), Some(9_000_000_000));
    }
}
