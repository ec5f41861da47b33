//! A small origin to try the gateway with.

use std::net::SocketAddr;

use axum::extract::{Request, State};
use axum::response::IntoResponse;
use serde_json::{Map, Value, json};

/// Responds to every request with the received request, as JSON.
pub(crate) async fn start(address: SocketAddr) -> std::io::Result<()> {
    let listener = tokio::net::TcpListener::bind(address).await?;
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
