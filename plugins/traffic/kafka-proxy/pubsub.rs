//! The messages of APISIX's PubSub protocol, after its `pubsub.proto`. They are written by hand, so that no build needs a
//! compiler of Protocol Buffers. The tags never change.

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Request {
    /// Names the request in its response.
    #[prost(int64, tag = "1")]
    pub(super) sequence: i64,
    #[prost(oneof = "Command", tags = "31, 32, 33, 34")]
    pub(super) command: Option<Command>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(super) enum Command {
    /// Nothing.
    #[prost(message, tag = "31")]
    Empty(Empty),
    /// Whether the gateway is there.
    #[prost(message, tag = "32")]
    Ping(State),
    /// Messages of a partition, from an offset on.
    #[prost(message, tag = "33")]
    Fetch(Fetch),
    /// The offset at a time.
    #[prost(message, tag = "34")]
    ListOffset(ListOffset),
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Empty {}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct State {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) state: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Fetch {
    #[prost(string, tag = "1")]
    pub(super) topic: String,
    #[prost(int32, tag = "2")]
    pub(super) partition: i32,
    #[prost(int64, tag = "3")]
    pub(super) offset: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ListOffset {
    #[prost(string, tag = "1")]
    pub(super) topic: String,
    #[prost(int32, tag = "2")]
    pub(super) partition: i32,
    /// Milliseconds since 1970; -1 for the next offset, -2 for the first one.
    #[prost(int64, tag = "3")]
    pub(super) timestamp: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Response {
    #[prost(int64, tag = "1")]
    pub(super) sequence: i64,
    #[prost(oneof = "PubSubResponse", tags = "31, 32, 33, 34")]
    pub(super) answer: Option<PubSubResponse>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(super) enum PubSubResponse {
    #[prost(message, tag = "31")]
    Error(Error),
    #[prost(message, tag = "32")]
    Pong(State),
    #[prost(message, tag = "33")]
    Fetched(Fetched),
    #[prost(message, tag = "34")]
    Offset(Offset),
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Error {
    #[prost(int32, tag = "1")]
    pub(super) code: i32,
    #[prost(string, tag = "2")]
    pub(super) message: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Fetched {
    #[prost(message, repeated, tag = "1")]
    pub(super) messages: Vec<Message>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Message {
    #[prost(int64, tag = "1")]
    pub(super) offset: i64,
    /// Milliseconds since 1970.
    #[prost(int64, tag = "2")]
    pub(super) timestamp: i64,
    #[prost(bytes = "vec", tag = "3")]
    pub(super) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "4")]
    pub(super) value: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Offset {
    #[prost(int64, tag = "1")]
    pub(super) offset: i64,
}

impl PubSubResponse {
    /// An error in these words.
    pub(super) fn error(message: impl Into<String>) -> PubSubResponse {
        // No error has another code.
        PubSubResponse::Error(Error { code: 0, message: message.into() })
    }
}
