//! Nacos by gRPC: JSON in an envelope, over a connection that Nacos treats as one client.
//!
//! The messages are written by hand from Nacos' `nacos_grpc_service.proto`, so that no build needs a Protocol Buffers
//! compiler. Their tags never change.

use std::collections::HashMap;
use std::time::Duration;

use http::Uri;
use http::uri::PathAndQuery;
use serde_json::Value;
use sigma_config::discovery::RegistryAddress;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;
use tonic::client::Grpc;
use tonic::transport::{Channel, ClientTlsConfig, Endpoint};
use tonic_prost::ProstCodec;

use crate::http::parsed;
use crate::source::{Env, Trouble};

const CALL: &str = "/Request/request";
pub(super) const STREAM: &str = "/BiRequestStream/requestBiStream";

/// The number of queued stream messages, in each direction.
const WAITING: usize = 64;

/// The envelope of all messages.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Payload {
    #[prost(message, optional, tag = "2")]
    metadata: Option<Metadata>,
    #[prost(message, optional, tag = "3")]
    body: Option<Any>,
}

/// The type of the body, and its headers.
#[derive(Clone, PartialEq, prost::Message)]
struct Metadata {
    #[prost(string, tag = "3")]
    kind: String,
    #[prost(map = "string, string", tag = "7")]
    headers: HashMap<String, String>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Any {
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

/// Headers of a request, such as a token.
pub(super) type Headers = HashMap<String, String>;

impl Payload {
    pub(super) fn new(kind: &str, headers: Headers, body: &Value) -> Payload {
        let metadata = Metadata { kind: kind.to_owned(), headers };
        Payload { metadata: Some(metadata), body: Some(Any { value: body.to_string().into_bytes() }) }
    }

    pub(super) fn kind(&self) -> &str {
        self.metadata.as_ref().map_or("", |metadata| &metadata.kind)
    }

    #[cfg(test)]
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.metadata.as_ref()?.headers.get(name).map(String::as_str)
    }

    /// Returns the body; None if it is not JSON.
    pub(super) async fn json(self) -> Option<Value> {
        parsed(self.body?.value).await.ok()
    }
}

/// A connection to one server.
pub(super) struct Client {
    channel: Channel,
    base: Box<str>,
    /// The timeout of a call.
    within: Duration,
    env: Env,
}

/// Messages pushed by a server, and the way to respond. A drop ends it.
pub(super) struct Stream {
    pub(super) sender: mpsc::Sender<Payload>,
    received: mpsc::Receiver<Result<Payload, Trouble>>,
    _task: JoinSet<()>,
}

impl Stream {
    /// Returns the next message.
    pub(super) async fn next(&mut self) -> Result<Payload, Trouble> {
        let ended = || Trouble("the push stream of Nacos ended".to_owned());
        self.received.recv().await.unwrap_or_else(|| Err(ended()))
    }
}

impl Client {
    /// Connects to the server at `address`, with the port offset for gRPC.
    pub(super) async fn connect(
        address: &RegistryAddress,
        port_offset: u16,
        connect_timeout: Duration,
        response_timeout: Duration,
        env: &Env,
    ) -> Result<Client, Trouble> {
        let place = place(address, port_offset)
            .ok_or_else(|| Trouble(format!("{} has no port for gRPC", address.base())))?;
        let wrong = |error: tonic::transport::Error| {
            Trouble(format!("{} cannot be reached by gRPC: {}", address.base(), crate::http::causes(&error)))
        };
        let is_secure = place.starts_with("https:");
        let mut endpoint = Endpoint::from_shared(place).map_err(wrong)?.connect_timeout(connect_timeout);
        if is_secure {
            endpoint = endpoint.tls_config(ClientTlsConfig::new().with_native_roots()).map_err(wrong)?;
        }
        let late = |_| Trouble(format!("{} did not respond over gRPC in time", address.base()));
        let channel = timeout(connect_timeout, endpoint.connect()).await.map_err(late)?.map_err(wrong)?;
        Ok(Client { channel, base: address.base().into(), within: response_timeout, env: env.clone() })
    }

    /// Sends a request, and waits for the response.
    pub(super) async fn call(&self, kind: &str, headers: Headers, body: &Value) -> Result<Value, Trouble> {
        self.env.tally.asked();
        let payload = Payload::new(kind, headers, body);
        let asked = async {
            let (request, path) = (tonic::Request::new(payload), PathAndQuery::from_static(CALL));
            let codec = ProstCodec::<Payload, Payload>::default();
            Ok::<Payload, Status>(self.ready().await?.unary(request, path, codec).await?.into_inner())
        };
        let unreadable = || Trouble(format!("{} responded to {kind} without JSON", self.base));
        let answered = match timeout(self.within, asked).await {
            Ok(Ok(answer)) => answer.json().await.ok_or_else(unreadable),
            Ok(Err(status)) => Err(self.trouble(&status)),
            Err(_) => Err(Trouble(format!("{} did not respond to {kind} in time", self.base))),
        };
        if answered.is_err() {
            self.env.tally.unanswered();
        }
        answered
    }

    /// Opens the stream of messages pushed by the server; `first` is the first message to it.
    pub(super) fn open(&self, first: Payload) -> Result<Stream, Trouble> {
        let (sender, requests) = mpsc::channel(WAITING);
        let full = |_| Trouble("the stream ended before it began".to_owned());
        sender.try_send(first).map_err(full)?;
        let (tell, received) = mpsc::channel(WAITING);
        let (channel, most) = (self.channel.clone(), self.most());
        let base = self.base.clone();
        let mut task = JoinSet::new();
        // Nacos responds to the stream's head only with its first message, which may take long.
        task.spawn(async move {
            let mut grpc = Grpc::new(channel).max_decoding_message_size(most);
            let opened = async {
                grpc.ready().await.map_err(|error| Status::from_error(error.into()))?;
                let request = tonic::Request::new(ReceiverStream::new(requests));
                let path = PathAndQuery::from_static(STREAM);
                Ok(grpc.streaming(request, path, ProstCodec::default()).await?.into_inner())
            };
            let mut messages: tonic::Streaming<Payload> = match opened.await {
                Ok(messages) => messages,
                Err(status) => return drop(tell.send(Err(trouble(&base, &status))).await),
            };
            loop {
                let message = match messages.message().await {
                    Ok(Some(message)) => Ok(message),
                    Ok(None) => return,
                    Err(status) => Err(trouble(&base, &status)),
                };
                let is_over = message.is_err();
                if tell.send(message).await.is_err() || is_over {
                    return;
                }
            }
        });
        Ok(Stream { sender, received, _task: task })
    }

    async fn ready(&self) -> Result<Grpc<Channel>, Status> {
        let mut grpc = Grpc::new(self.channel.clone()).max_decoding_message_size(self.most());
        grpc.ready().await.map_err(|error| Status::from_error(error.into()))?;
        Ok(grpc)
    }

    fn most(&self) -> usize {
        self.env.limits.answer_bytes as usize
    }

    fn trouble(&self, status: &Status) -> Trouble {
        trouble(&self.base, status)
    }
}

fn trouble(base: &str, status: &Status) -> Trouble {
    let message: String = status.message().chars().take(200).collect();
    Trouble(format!("{base} ended the gRPC call: {:?} {message}", status.code()))
}

/// Returns the gRPC address of a server; None if there is no such port.
fn place(address: &RegistryAddress, port_offset: u16) -> Option<String> {
    let uri: Uri = address.base().parse().ok()?;
    let scheme = uri.scheme_str()?;
    let port = uri.port_u16().unwrap_or(if scheme == "https" { 443 } else { 80 });
    Some(format!("{scheme}://{}:{}", uri.host()?, port.checked_add(port_offset)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grpc_port_is_higher() {
        let check = |address: &str, want: Option<&str>| {
            let address: RegistryAddress = address.parse().expect("an address");
            assert_eq!(place(&address, 1000).as_deref(), want);
        };
        check("http://u:p@nacos:8848", Some("http://nacos:9848"));
        check("https://[::1]:8848", Some("https://[::1]:9848"));
        check("http://nacos", Some("http://nacos:1080"));
        check("http://nacos:65000", None);
    }
}
