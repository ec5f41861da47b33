//! Pingora as a peer of the benchmarks: `bench-pingora PORT ORIGIN_PORT`.

use async_trait::async_trait;
use pingora_core::prelude::{HttpPeer, Result, Server};
use pingora_core::server::configuration::ServerConf;
use pingora_proxy::{ProxyHttp, Session, http_proxy_service};

/// Forwards everything to one origin, adding `X-Real-IP` and `X-Forwarded-For`.
struct Forward {
    origin: String,
}

#[async_trait]
impl ProxyHttp for Forward {
    type CTX = ();

    fn new_ctx(&self) -> Self::CTX {}

    async fn upstream_peer(&self, _: &mut Session, (): &mut Self::CTX) -> Result<Box<HttpPeer>> {
        Ok(Box::new(HttpPeer::new(self.origin.as_str(), false, String::new())))
    }

    async fn upstream_request_filter(
        &self,
        session: &mut Session,
        request: &mut pingora_http::RequestHeader,
        (): &mut Self::CTX,
    ) -> Result<()> {
        let client = session
            .client_addr()
            .and_then(|address| address.as_inet())
            .map(|address| address.ip().to_string());
        if let Some(client) = client {
            request.insert_header("X-Real-IP", client.as_str())?;
            request.insert_header("X-Forwarded-For", client.as_str())?;
        }
        Ok(())
    }
}

fn main() {
    let ports: Vec<u16> = std::env::args().skip(1).filter_map(|text| text.parse().ok()).collect();
    let [port, origin] = ports[..] else {
        eprintln!("usage: bench-pingora PORT ORIGIN_PORT");
        std::process::exit(2);
    };
    // Pingora drains for minutes by default; a benchmark has nothing left to drain.
    let conf = ServerConf {
        threads: 1,
        upstream_keepalive_pool_size: 512,
        grace_period_seconds: Some(0),
        graceful_shutdown_timeout_seconds: Some(0),
        ..ServerConf::default()
    };
    let mut server = Server::new_with_opt_and_conf(None, conf);
    server.bootstrap();
    let mut service =
        http_proxy_service(&server.configuration, Forward { origin: format!("127.0.0.1:{origin}") });
    service.add_tcp(&format!("127.0.0.1:{port}"));
    server.add_service(service);
    server.run_forever();
}
