//! A small origin to try the gateway with.

use std::io;
use std::net::SocketAddr;

use axum::extract::{Request, State};
use axum::response::IntoResponse;
use serde_json::{Map, Value, json};
use sigma_net::listen::Claim;
use sigma_net::{BoundSocket, TcpOptions};
use tokio::net::TcpListener;

/// Connections that may wait in the kernel.
const BACKLOG: u32 = 1024;

/// Listens for a demo server. The successor of an upgrade shares the address with the process before it, which
/// still serves.
///
/// # Errors
/// Returns the error of the operating system, for example if another program uses the address.
pub(crate) fn listen(address: SocketAddr, claim: Claim) -> io::Result<TcpListener> {
    match BoundSocket::tcp(address, BACKLOG, claim, &TcpOptions::default())? {
        BoundSocket::Tcp(listener) => TcpListener::from_std(listener),
        _ => Err(io::ErrorKind::Unsupported.into()),
    }
}

/// Responds to every request with the received request, as JSON.
pub(crate) fn start(address: SocketAddr, claim: Claim) -> io::Result<()> {
    let listener = listen(address, claim)?;
    let router = axum::Router::new().fallback(echo).with_state(listener.local_addr()?);
    tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, router).await {
            tracing::error!(%error, "the demo origin has ended");
        }
    });
    Ok(())
}

async fn echo(State(origin): State<SocketAddr>, request: Request) -> impl IntoResponse {
    let text =
        |value: &axum::http::HeaderValue| Value::from(String::from_utf8_lossy(value.as_bytes()).into_owned());
    let headers: Map<String, Value> =
        request.headers().iter().map(|(name, value)| (name.to_string(), text(value))).collect();
    let body = json!({
        "message": "hello from the demo origin",
        "origin": origin.to_string(),
        "method": request.method().as_str(),
        "uri": request.uri().to_string(),
        "headers": headers,
    });
    ([("content-type", "application/json")], format!("{body:#}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_a_successor_shares_an_address() {
        let first = listen("127.0.0.1:0".parse().unwrap(), Claim::First).unwrap();
        let address = first.local_addr().unwrap();
        let refused = listen(address, Claim::First).expect_err("it is in use");
        assert_eq!(refused.kind(), io::ErrorKind::AddrInUse);
        assert_eq!(listen(address, Claim::Further).unwrap().local_addr().unwrap(), address);
    }
}
