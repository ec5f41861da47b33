//! A client of one member of etcd, over gRPC.
//!
//! It holds one connection, and does not make another when that one ends: data of an etcd is only known to be
//! of the same history as later data while the connection lasts.

use std::future::Future;
use std::pin::Pin;
use std::str::FromStr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use http::uri::PathAndQuery;
use hyper_util::client::legacy::connect::HttpConnector;
use tokio::sync::{Mutex, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::client::Grpc;
use tonic::metadata::AsciiMetadataValue;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Error, Identity};
use tonic::{Code, Status, Streaming};
use tonic_prost::ProstCodec;
use tower_service::Service;

use super::EtcdOptions;
use super::messages::{
    AuthenticateRequest, Request, WATCH_PATH, WatchCreateRequest, WatchOrder, WatchProgressRequest,
    WatchRequest, WatchResponse,
};

/// HTTP/2 pings on a quiet connection, and how long the response may take. etcd closes connections that ping more than
/// every 5 seconds.
const PING: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(5));

/// A connection to a member. Clones share it.
#[derive(Clone)]
pub(super) struct Client {
    channel: Channel,
    user: Option<Arc<(String, String)>>,
    token: Arc<Mutex<Option<AsciiMetadataValue>>>,
}

/// A watch that continues until it is dropped.
pub(super) struct Watching {
    requests: mpsc::Sender<WatchRequest>,
    responses: Streaming<WatchResponse>,
}

impl Client {
    /// Connects to a member, within `limit`.
    pub(super) async fn connect(
        endpoint: &str,
        options: &EtcdOptions,
        limit: Duration,
    ) -> Result<Client, Error> {
        let mut place = Endpoint::from_shared(endpoint.to_owned())?
            .timeout(options.timeout)
            .connect_timeout(limit)
            .http2_keep_alive_interval(PING.0)
            .keep_alive_timeout(PING.1)
            .keep_alive_while_idle(true);
        if endpoint.starts_with("https://") {
            place = place.tls_config(tls(options))?;
        }
        let channel = place.connect_with_connector(Once::new(limit)).await?;
        let user = options.user.clone().map(Arc::new);
        Ok(Client { channel, user, token: Arc::default() })
    }

    /// Sends a request. One that is refused because the token has run out is sent once more with a
    /// new one.
    pub(super) async fn call<R: Request>(&self, request: &R) -> Result<R::Reply, Status> {
        let token = self.token(None).await?;
        match self.send(request.clone(), token.as_ref()).await {
            Err(status) if self.outdated(&status) => {
                let token = self.token(token).await?;
                self.send(request.clone(), token.as_ref()).await
            }
            result => result,
        }
    }

    /// Begins a watch.
    pub(super) async fn watch(&self, create: WatchCreateRequest) -> Result<Watching, Status> {
        let token = self.token(None).await?;
        match self.open_watch(create.clone(), token.as_ref()).await {
            Err(status) if self.outdated(&status) => {
                let token = self.token(token).await?;
                self.open_watch(create, token.as_ref()).await
            }
            result => result,
        }
    }

    /// The token of the user, if there is one. `stale` has been refused: of those who come with the same one, the
    /// first requests another.
    async fn token(&self, stale: Option<AsciiMetadataValue>) -> Result<Option<AsciiMetadataValue>, Status> {
        let Some(user) = &self.user else { return Ok(None) };
        let mut token = self.token.lock().await;
        if token.is_none() || *token == stale {
            let (name, password) = (**user).clone();
            let answer = self.send(AuthenticateRequest { name, password }, None).await?;
            let mut new = AsciiMetadataValue::from_str(&answer.token)
                .map_err(|_| Status::internal("etcd's token is invalid"))?;
            new.set_sensitive(true);
            *token = Some(new);
        }
        Ok(token.clone())
    }

    fn outdated(&self, status: &Status) -> bool {
        self.user.is_some() && status.code() == Code::Unauthenticated
    }

    async fn send<R: Request>(
        &self,
        request: R,
        token: Option<&AsciiMetadataValue>,
    ) -> Result<R::Reply, Status> {
        let mut grpc = self.ready().await?;
        let path = PathAndQuery::from_static(R::PATH);
        Ok(grpc.unary(marked(request, token), path, ProstCodec::default()).await?.into_inner())
    }

    async fn open_watch(
        &self,
        create: WatchCreateRequest,
        token: Option<&AsciiMetadataValue>,
    ) -> Result<Watching, Status> {
        // Room for the one request that begins, and for the one for a sign of life: no more are
        // under way.
        let (requests, sent) = mpsc::channel(2);
        let first = requests.try_send(WatchOrder::Create(create).into());
        first.map_err(|_| Status::internal("etcd refused the watch"))?;
        let mut grpc = self.ready().await?;
        let path = PathAndQuery::from_static(WATCH_PATH);
        let request = marked(ReceiverStream::new(sent), token);
        let responses = grpc.streaming(request, path, ProstCodec::default()).await?.into_inner();
        Ok(Watching { requests, responses })
    }

    /// A channel that can take a request. Answers may be as large as etcd makes them: a
    /// transaction of one revision comes in one piece.
    async fn ready(&self) -> Result<Grpc<Channel>, Status> {
        let mut grpc = Grpc::new(self.channel.clone()).max_decoding_message_size(usize::MAX);
        grpc.ready().await.map_err(|error| Status::from_error(error.into()))?;
        Ok(grpc)
    }
}

impl Watching {
    /// The next response; None at the end.
    pub(super) async fn message(&mut self) -> Result<Option<WatchResponse>, Status> {
        self.responses.message().await
    }

    /// Requests a sign of life.
    pub(super) async fn request_progress(&self) -> Result<(), Status> {
        let order = WatchOrder::Progress(WatchProgressRequest {});
        let sent = self.requests.send(order.into()).await;
        sent.map_err(|_| Status::unavailable("etcd no longer reads from the watch"))
    }
}

/// With the token, and with the wish that a member which is cut off from the others refuses.
fn marked<T>(message: T, token: Option<&AsciiMetadataValue>) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    let metadata = request.metadata_mut();
    metadata.insert("hasleader", AsciiMetadataValue::from_static("true"));
    if let Some(token) = token {
        metadata.insert("token", token.clone());
    }
    request
}

fn tls(options: &EtcdOptions) -> ClientTlsConfig {
    let mut tls = match &options.tls.ca {
        Some(ca) => ClientTlsConfig::new().ca_certificate(Certificate::from_pem(ca)),
        None => ClientTlsConfig::new().with_native_roots(),
    };
    if let Some((certificate, key)) = &options.tls.identity {
        tls = tls.identity(Identity::from_pem(certificate, key));
    }
    if let Some(sni) = &options.tls.sni {
        tls = tls.domain_name(sni);
    }
    tls
}

/// Makes one connection: the channel would make another by itself.
struct Once {
    connector: Option<HttpConnector>,
}

impl Once {
    fn new(limit: Duration) -> Once {
        let mut connector = HttpConnector::new();
        connector.enforce_http(false);
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(limit));
        Once { connector: Some(connector) }
    }
}

impl Service<Uri> for Once {
    type Response = <HttpConnector as Service<Uri>>::Response;
    type Error = Box<dyn std::error::Error + Send + Sync>;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        match &mut self.connector {
            Some(connector) => connector.poll_ready(context).map_err(Into::into),
            None => Poll::Ready(Ok(())),
        }
    }

    fn call(&mut self, place: Uri) -> Self::Future {
        match self.connector.take() {
            Some(mut connector) => {
                let connection = connector.call(place);
                Box::pin(async move { connection.await.map_err(Into::into) })
            }
            None => Box::pin(async { Err("the connection has ended".into()) }),
        }
    }
}
