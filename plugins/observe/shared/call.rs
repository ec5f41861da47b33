//! A collector that is called by gRPC.

use std::time::Duration;

use http::uri::PathAndQuery;
use reqwest::Url;
use reqwest::header::HeaderMap;
use tokio::sync::OnceCell;
use tonic::client::Grpc;
use tonic::metadata::MetadataMap;
use tonic::transport::{Channel, ClientTlsConfig, Endpoint};
use tonic::{Code, Status};
use tonic_prost::ProstCodec;

/// The address of a collector, and the protocol. The certificate of one with `https` is verified.
pub(crate) struct Callee {
    endpoint: String,
    headers: HeaderMap,
    timeout: Duration,
    /// Made with the first call: it reads the system's certificates.
    channel: OnceCell<Channel>,
}

/// Why a call has no response.
#[derive(Debug)]
pub(crate) struct Refused {
    /// A sentence.
    pub(crate) reason: String,
    /// The same call may be answered later.
    pub(crate) is_passing: bool,
}

impl Callee {
    /// One that is sent these fields with each call, and answers within this time. None if its address has a path,
    /// which gRPC has no use for.
    pub(crate) fn new(url: &Url, headers: HeaderMap, timeout: Duration) -> Option<Callee> {
        let is_bare = matches!(url.path(), "" | "/") && url.query().is_none();
        let endpoint = url.as_str().trim_end_matches('/').to_owned();
        is_bare.then(|| Callee { endpoint, headers, timeout, channel: OnceCell::new() })
    }

    /// Its address.
    pub(crate) fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Calls a method, which is a path, and waits for the response.
    ///
    /// # Errors
    /// Returns an error if there is no response, or not in time.
    pub(crate) async fn call<Q, A>(&self, method: &'static str, message: Q) -> Result<A, Refused>
    where
        Q: prost::Message + Send + Sync + 'static,
        A: prost::Message + Default + Send + Sync + 'static,
    {
        let channel = self.channel.get_or_try_init(|| async { self.connected() }).await?.clone();
        let late =
            |_| Refused { reason: format!("{} did not respond in time", self.endpoint), is_passing: true };
        let answer = unary(channel, self.headers.clone(), method, message);
        let answer = tokio::time::timeout(self.timeout, answer).await.map_err(late)?;
        answer.map_err(|status| refused(&self.endpoint, &status))
    }

    /// A channel that connects when it is used, and again when the connection ends.
    fn connected(&self) -> Result<Channel, Refused> {
        let wrong = |error: tonic::transport::Error| Refused {
            reason: format!("cannot call {} by gRPC: {error}", self.endpoint),
            is_passing: false,
        };
        let place = Endpoint::from_shared(self.endpoint.clone()).map_err(wrong)?;
        let place = place.connect_timeout(self.timeout);
        let place = match self.endpoint.starts_with("https:") {
            true => place.tls_config(ClientTlsConfig::new().with_native_roots()).map_err(wrong)?,
            false => place,
        };
        Ok(place.connect_lazy())
    }
}

async fn unary<Q, A>(
    channel: Channel,
    headers: HeaderMap,
    method: &'static str,
    message: Q,
) -> Result<A, Status>
where
    Q: prost::Message + Send + Sync + 'static,
    A: prost::Message + Default + Send + Sync + 'static,
{
    let mut grpc = Grpc::new(channel);
    grpc.ready().await.map_err(|error| Status::unavailable(causes(&error)))?;
    let mut request = tonic::Request::new(message);
    *request.metadata_mut() = MetadataMap::from_headers(headers);
    let codec = ProstCodec::<Q, A>::default();
    Ok(grpc.unary(request, PathAndQuery::from_static(method), codec).await?.into_inner())
}

fn refused(endpoint: &str, status: &Status) -> Refused {
    let (code, text) = (status.code(), status.message().escape_debug());
    let is_passing = matches!(
        code,
        Code::Cancelled
            | Code::DeadlineExceeded
            | Code::ResourceExhausted
            | Code::Aborted
            | Code::OutOfRange
            | Code::Unavailable
            | Code::DataLoss
    );
    Refused { reason: format!("{endpoint} responded with {code:?}: {text}"), is_passing }
}

fn causes(error: &dyn std::error::Error) -> String {
    let all = std::iter::successors(Some(error), |cause| cause.source());
    all.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeatable_errors() {
        let check = |code: Code, expected: bool| {
            assert_eq!(refused("http://h", &Status::new(code, "")).is_passing, expected, "{code:?}");
        };
        check(Code::Unavailable, true);
        check(Code::ResourceExhausted, true);
        check(Code::InvalidArgument, false);
        check(Code::Unauthenticated, false);
        check(Code::Unimplemented, false);
    }

    #[test]
    fn an_address_has_no_path() {
        let check = |url: &str, expected: Option<&str>| {
            let callee = Callee::new(&Url::parse(url).unwrap(), HeaderMap::new(), Duration::MAX);
            assert_eq!(callee.as_ref().map(Callee::endpoint), expected, "{url}");
        };
        check("http://h:4317", Some("http://h:4317"));
        check("https://h:4317/", Some("https://h:4317"));
        check("http://h:4317/v1/metrics", None);
        check("http://h:4317/?a", None);
    }
}
