//! The messages of etcd's API, version 3, that the gateway sends and reads.
//!
//! They are written by hand after etcd's `rpc.proto` and `kv.proto`, so that no build needs a compiler of Protocol
//! Buffers. Only the used parts are here: a field that is missing from a request has its default, one that is missing
//! from a response is skipped when it is read. The tags are etcd's and never change.

/// A request with one response.
pub(super) trait Request: prost::Message + Clone + 'static {
    /// The path of the method.
    const PATH: &'static str;
    /// What comes back.
    type Reply: prost::Message + Default + 'static;
}

/// Tells etcd's methods apart; the first word is the request.
macro_rules! methods {
    ($($request:ident => $answer:ident at $path:literal;)*) => {
        $(impl Request for $request {
            const PATH: &'static str = $path;
            type Reply = $answer;
        })*
    };
}

methods! {
    RangeRequest => RangeResponse at "/etcdserverpb.KV/Range";
    PutRequest => PutResponse at "/etcdserverpb.KV/Put";
    TxnRequest => TxnResponse at "/etcdserverpb.KV/Txn";
    LeaseGrantRequest => LeaseGrantResponse at "/etcdserverpb.Lease/LeaseGrant";
    LeaseRevokeRequest => LeaseRevokeResponse at "/etcdserverpb.Lease/LeaseRevoke";
    LeaseKeepAliveRequest => LeaseKeepAliveResponse at "/etcdserverpb.Lease/LeaseKeepAlive";
    StatusRequest => StatusResponse at "/etcdserverpb.Maintenance/Status";
    LeaseTimeToLiveRequest => LeaseTimeToLiveResponse at "/etcdserverpb.Lease/LeaseTimeToLive";
    AuthenticateRequest => AuthenticateResponse at "/etcdserverpb.Auth/Authenticate";
}

/// The path of the method that watches: requests and answers are streams there.
pub(super) const WATCH_PATH: &str = "/etcdserverpb.Watch/Watch";

/// When etcd answered.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(super) struct ResponseHeader {
    /// The store's revision when the request was carried out.
    #[prost(int64, tag = "3")]
    pub(super) revision: i64,
}

/// A key and its value.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct KeyValue {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) key: Vec<u8>,
    #[prost(int64, tag = "2")]
    pub(super) create_revision: i64,
    /// Of a deletion: the revision of that.
    #[prost(int64, tag = "3")]
    pub(super) mod_revision: i64,
    #[prost(bytes = "vec", tag = "5")]
    pub(super) value: Vec<u8>,
    /// 0 for none.
    #[prost(int64, tag = "6")]
    pub(super) lease: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct RangeRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) key: Vec<u8>,
    /// The first key after the range; empty for the one key alone.
    #[prost(bytes = "vec", tag = "2")]
    pub(super) range_end: Vec<u8>,
    /// Keys in the response at most; 0 for all.
    #[prost(int64, tag = "3")]
    pub(super) limit: i64,
    /// Reads the state at this revision; 0 for now.
    #[prost(int64, tag = "4")]
    pub(super) revision: i64,
    /// Leaves the values out.
    #[prost(bool, tag = "8")]
    pub(super) keys_only: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct RangeResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<ResponseHeader>,
    #[prost(message, repeated, tag = "2")]
    pub(super) kvs: Vec<KeyValue>,
    /// The limit cut it short.
    #[prost(bool, tag = "3")]
    pub(super) more: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct PutRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) value: Vec<u8>,
    /// 0 for none.
    #[prost(int64, tag = "3")]
    pub(super) lease: i64,
    /// The response has the former values.
    #[prost(bool, tag = "4")]
    pub(super) prev_kv: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct PutResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<ResponseHeader>,
    #[prost(message, optional, tag = "2")]
    pub(super) prev_kv: Option<KeyValue>,
}

/// Deletes one key.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct DeleteRangeRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) key: Vec<u8>,
}

/// One operation of a transaction.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct RequestOp {
    #[prost(oneof = "Operation", tags = "2, 3, 4")]
    pub(super) request: Option<Operation>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(super) enum Operation {
    #[prost(message, tag = "2")]
    Put(PutRequest),
    #[prost(message, tag = "3")]
    Delete(DeleteRangeRequest),
    #[prost(message, tag = "4")]
    Txn(TxnRequest),
}

impl From<Operation> for RequestOp {
    fn from(operation: Operation) -> RequestOp {
        RequestOp { request: Some(operation) }
    }
}

/// The result of an operation; results of deletions and nested transactions are not read.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ResponseOp {
    #[prost(message, optional, tag = "2")]
    pub(super) put: Option<PutResponse>,
}

/// A condition: the number of the key equals the given one. 0, the default of the field `result`, means
/// equality.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Compare {
    /// Which number: [`Compare::CREATE`] or [`Compare::MOD`].
    #[prost(int32, tag = "2")]
    pub(super) target: i32,
    #[prost(bytes = "vec", tag = "3")]
    pub(super) key: Vec<u8>,
    #[prost(oneof = "Expected", tags = "5, 6")]
    pub(super) expected: Option<Expected>,
}

/// The number that is expected; 0 is sent as well.
#[derive(Clone, PartialEq, prost::Oneof)]
pub(super) enum Expected {
    /// The revision in which the key came into being; 0 where it does not exist.
    #[prost(int64, tag = "5")]
    CreateRevision(i64),
    #[prost(int64, tag = "6")]
    ModRevision(i64),
}

impl Compare {
    const CREATE: i32 = 1;
    const MOD: i32 = 2;

    /// The key does not exist.
    pub(super) fn absent(key: impl Into<Vec<u8>>) -> Compare {
        let expected = Some(Expected::CreateRevision(0));
        Compare { target: Compare::CREATE, key: key.into(), expected }
    }

    /// The key was last written in this revision.
    pub(super) fn modified_at(key: impl Into<Vec<u8>>, revision: i64) -> Compare {
        let expected = Some(Expected::ModRevision(revision));
        Compare { target: Compare::MOD, key: key.into(), expected }
    }
}

/// Operations that are carried out if all conditions hold.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct TxnRequest {
    #[prost(message, repeated, tag = "1")]
    pub(super) compare: Vec<Compare>,
    #[prost(message, repeated, tag = "2")]
    pub(super) success: Vec<RequestOp>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct TxnResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<ResponseHeader>,
    /// The conditions held.
    #[prost(bool, tag = "2")]
    pub(super) succeeded: bool,
    #[prost(message, repeated, tag = "3")]
    pub(super) responses: Vec<ResponseOp>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct LeaseGrantRequest {
    /// In seconds.
    #[prost(int64, tag = "1")]
    pub(super) ttl: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct LeaseGrantResponse {
    #[prost(int64, tag = "2")]
    pub(super) id: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct LeaseRevokeRequest {
    #[prost(int64, tag = "1")]
    pub(super) id: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct LeaseRevokeResponse {}

/// Requests and answers are streams there; one of each is a stream as well.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct LeaseKeepAliveRequest {
    #[prost(int64, tag = "1")]
    pub(super) id: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct LeaseKeepAliveResponse {
    /// In seconds; 0 if there is no such lease.
    #[prost(int64, tag = "3")]
    pub(super) ttl: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct StatusRequest {}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct StatusResponse {
    /// Of the member that responds.
    #[prost(string, tag = "2")]
    pub(super) version: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct LeaseTimeToLiveRequest {
    #[prost(int64, tag = "1")]
    pub(super) id: i64,
    /// The response brings the keys that are bound to it.
    #[prost(bool, tag = "2")]
    pub(super) keys: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct LeaseTimeToLiveResponse {
    #[prost(bytes = "vec", repeated, tag = "5")]
    pub(super) keys: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct AuthenticateRequest {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) password: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct AuthenticateResponse {
    #[prost(string, tag = "2")]
    pub(super) token: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct WatchRequest {
    #[prost(oneof = "WatchOrder", tags = "1, 3")]
    pub(super) order: Option<WatchOrder>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(super) enum WatchOrder {
    #[prost(message, tag = "1")]
    Create(WatchCreateRequest),
    /// Requests a sign of life.
    #[prost(message, tag = "3")]
    Progress(WatchProgressRequest),
}

impl From<WatchOrder> for WatchRequest {
    fn from(order: WatchOrder) -> WatchRequest {
        WatchRequest { order: Some(order) }
    }
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct WatchCreateRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) range_end: Vec<u8>,
    /// The first revision of the watch.
    #[prost(int64, tag = "3")]
    pub(super) start_revision: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct WatchProgressRequest {}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct WatchResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<ResponseHeader>,
    /// The first response.
    #[prost(bool, tag = "3")]
    pub(super) created: bool,
    /// The last response.
    #[prost(bool, tag = "4")]
    pub(super) canceled: bool,
    /// Where changes up to this revision are forgotten and were requested; 0 otherwise.
    #[prost(int64, tag = "5")]
    pub(super) compact_revision: i64,
    #[prost(string, tag = "6")]
    pub(super) cancel_reason: String,
    #[prost(message, repeated, tag = "11")]
    pub(super) events: Vec<WatchEvent>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct WatchEvent {
    /// 0 for a write, [`WatchEvent::DELETE`] for a deletion.
    #[prost(int32, tag = "1")]
    pub(super) kind: i32,
    #[prost(message, optional, tag = "2")]
    pub(super) kv: Option<KeyValue>,
}

impl WatchEvent {
    pub(super) const DELETE: i32 = 1;
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;

    /// Bytes as `protoc --encode` writes them with etcd's own definitions.
    #[test]
    fn requests_are_the_bytes_that_etcd_reads() {
        fn check(message: &(impl Message + std::fmt::Debug), expected: &[u8]) {
            assert_eq!(message.encode_to_vec(), expected, "{message:?}");
        }
        let range = RangeRequest {
            key: b"/a/".into(),
            range_end: b"/a0".into(),
            limit: 8192,
            revision: 300,
            keys_only: true,
        };
        check(&range, b"\x0a\x03/a/\x12\x03/a0\x18\x80\x40\x20\xac\x02\x40\x01");
        let put = PutRequest { key: b"k".into(), value: b"v".into(), lease: 7, prev_kv: true };
        check(&put, b"\x0a\x01k\x12\x01v\x18\x07\x20\x01");
        let delete = DeleteRangeRequest { key: b"k".into() };
        check(&RequestOp::from(Operation::Delete(delete)), b"\x1a\x03\x0a\x01k");
        // A number of 0 is sent where one of several is chosen.
        check(&Compare::absent("k"), b"\x10\x01\x1a\x01k\x28\x00");
        check(&Compare::modified_at("k", 300), b"\x10\x02\x1a\x01k\x30\xac\x02");
        let inner =
            TxnRequest { compare: vec![Compare::absent("k")], success: vec![Operation::Put(put).into()] };
        check(&inner, b"\x0a\x07\x10\x01\x1a\x01k\x28\x00\x12\x0c\x12\x0a\x0a\x01k\x12\x01v\x18\x07\x20\x01");
        let outer = TxnRequest { compare: vec![], success: vec![Operation::Txn(inner).into()] };
        check(
            &outer,
            b"\x12\x19\x22\x17\x0a\x07\x10\x01\x1a\x01k\x28\x00\x12\x0c\x12\x0a\x0a\x01k\x12\x01v\x18\x07\x20\x01",
        );
        check(&LeaseGrantRequest { ttl: 600 }, b"\x08\xd8\x04");
        check(&LeaseRevokeRequest { id: -1 }, b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01");
        check(&LeaseTimeToLiveRequest { id: 5, keys: true }, b"\x08\x05\x10\x01");
        let user = AuthenticateRequest { name: "root".into(), password: "pw".into() };
        check(&user, b"\x0a\x04root\x12\x02pw");
        let create = WatchCreateRequest { key: b"/".into(), range_end: b"0".into(), start_revision: 9 };
        check(&WatchRequest::from(WatchOrder::Create(create)), b"\x0a\x08\x0a\x01/\x12\x010\x18\x09");
        let progress = WatchOrder::Progress(WatchProgressRequest {});
        check(&WatchRequest::from(progress), b"\x1a\x00");
    }

    /// Answers bring more than is read: member ids, versions, counts, other results.
    #[test]
    fn answers_are_read_and_unknown_parts_are_skipped() {
        fn check<M: Message + Default + PartialEq + std::fmt::Debug>(bytes: &[u8], expected: &M) {
            assert_eq!(&M::decode(bytes).unwrap(), expected);
        }
        let header = Some(ResponseHeader { revision: 5 });
        let kv =
            KeyValue { key: b"k".into(), create_revision: 2, mod_revision: 3, value: b"{}".into(), lease: 9 };
        // Header with a member and a term; key with a version; `more`; a count.
        let range = b"\x0a\x09\x08\xac\x02\x10\x01\x18\x05\x20\x02\x12\x0f\x0a\x01k\x10\x02\x18\x03\x20\x01\x2a\x02{}\x30\x09\x18\x01\x20\x64";
        check(range, &RangeResponse { header, kvs: vec![kv.clone()], more: true });
        let txn = b"\x0a\x05\x08\xac\x02\x18\x05\x10\x01\x1a\x13\x12\x11\x12\x0f\x0a\x01k\x10\x02\x18\x03\x20\x01\x2a\x02{}\x30\x09\x1a\x04\x1a\x02\x10\x01";
        let put = PutResponse { header: None, prev_kv: Some(kv.clone()) };
        let responses = vec![ResponseOp { put: Some(put) }, ResponseOp { put: None }];
        check(txn, &TxnResponse { header, succeeded: true, responses });
        check(b"\x10\x07\x18\x3c", &LeaseGrantResponse { id: 7 });
        check(
            b"\x10\x07\x18\x3c\x2a\x01k\x2a\x01l",
            &LeaseTimeToLiveResponse { keys: vec![b"k".to_vec(), b"l".to_vec()] },
        );
        check(b"\x0a\x02\x18\x05\x12\x05token", &AuthenticateResponse { token: "token".into() });
        let events = vec![
            WatchEvent { kind: 0, kv: Some(kv) },
            WatchEvent {
                kind: WatchEvent::DELETE,
                kv: Some(KeyValue { key: b"l".into(), mod_revision: 4, ..KeyValue::default() }),
            },
        ];
        let watch = b"\x0a\x05\x08\xac\x02\x18\x05\x5a\x11\x12\x0f\x0a\x01k\x10\x02\x18\x03\x20\x01\x2a\x02{}\x30\x09\x5a\x09\x08\x01\x12\x05\x0a\x01l\x18\x04";
        check(watch, &WatchResponse { header, events, ..WatchResponse::default() });
        let gone = b"\x20\x01\x28\x0a\x32\x02no";
        let expected = WatchResponse {
            canceled: true,
            compact_revision: 10,
            cancel_reason: "no".into(),
            ..WatchResponse::default()
        };
        check(gone, &expected);
        assert!(RangeResponse::decode(&range[..range.len() - 6]).is_err(), "cut short");
    }
}
