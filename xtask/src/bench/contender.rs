//! The gateways that are measured: their configuration and how they are started.
//!
//! All of them do the same work: one worker, kept connections to the origin, `X-Real-IP` and
//! `X-Forwarded-For` added (by Sigma and the bare forwarder three more fields), no access log, bodies
//! streamed; the protocols are the ones in the trial's [`Edge`]. Where a default would cost a peer time that
//! the comparison is not about (a limit of requests per connection, temporary files), it is lifted.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Context;

use super::edge::{Certificate, Edge, Protocol};
use super::launch::{Launch, Running, Workplace};
use super::process::free_port;

/// The peers' names on the command line.
pub(super) const FAMILIES: [&str; 5] = ["nginx", "haproxy", "envoy", "pingora", "floor"];

/// One gateway with one configuration.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Contender {
    /// Sigma with this many routes; with one, it matches every path.
    Sigma {
        routes: u32,
    },
    /// nginx keeping at most this many idle upstream connections.
    Nginx {
        keepalive: u32,
    },
    Haproxy,
    Envoy,
    Pingora,
    /// The bare forwarder in `bench/floor`.
    Floor,
}

/// Where the programs of a run are; a peer that could not be had is `None` and left out.
pub(super) struct Programs {
    pub(super) sigma: Option<PathBuf>,
    pub(super) nginx: Option<PathBuf>,
    pub(super) haproxy: Option<PathBuf>,
    pub(super) envoy: Option<PathBuf>,
    pub(super) pingora: Option<PathBuf>,
    pub(super) floor: Option<PathBuf>,
    pub(super) origin: PathBuf,
    pub(super) idle: PathBuf,
    pub(super) sessions: PathBuf,
    pub(super) datagrams: PathBuf,
    pub(super) h3load: PathBuf,
}

impl Programs {
    pub(super) fn path(&self, contender: Contender) -> Option<&Path> {
        let path = match contender {
            Contender::Sigma { .. } => &self.sigma,
            Contender::Nginx { .. } => &self.nginx,
            Contender::Haproxy => &self.haproxy,
            Contender::Envoy => &self.envoy,
            Contender::Pingora => &self.pingora,
            Contender::Floor => &self.floor,
        };
        path.as_deref()
    }
}

impl Contender {
    /// The name in tables; [`super::report`] finds its references by it.
    pub(super) fn label(self) -> String {
        match self {
            Self::Sigma { routes: 1 } => "Sigma".into(),
            Self::Sigma { routes } => format!("Sigma, {routes} routes"),
            Self::Nginx { keepalive: 512 } => "nginx".into(),
            Self::Nginx { keepalive } => format!("nginx, keepalive {keepalive}"),
            Self::Haproxy => "HAProxy".into(),
            Self::Envoy => "Envoy".into(),
            Self::Pingora => "Pingora".into(),
            Self::Floor => "bare forwarder".into(),
        }
    }

    /// The name on the command line.
    pub(super) fn family(self) -> &'static str {
        match self {
            Self::Sigma { .. } => "sigma",
            Self::Nginx { .. } => "nginx",
            Self::Haproxy => "haproxy",
            Self::Envoy => "envoy",
            Self::Pingora => "pingora",
            Self::Floor => "floor",
        }
    }

    /// A path that the gateway's last route matches.
    pub(super) fn path(self, asked: &str) -> String {
        match self {
            Self::Sigma { routes } if routes > 1 => format!("/r/{}{asked}", routes - 1),
            _ => asked.to_owned(),
        }
    }

    /// Writes the configuration, starts the gateway on its core and waits until it responds.
    pub(super) fn start(self, programs: &Programs, work: &Path, origin: u16) -> anyhow::Result<Running> {
        let launch = self.prepare(programs, work, origin)?;
        let (running, _) = launch.start()?;
        Ok(running)
    }

    /// Everything that precedes the start of the process, with HTTP/1.1 in cleartext on both sides.
    pub(super) fn prepare(self, programs: &Programs, work: &Path, origin: u16) -> anyhow::Result<Launch> {
        self.prepare_edge(programs, work, origin, &Edge::PLAIN)
    }

    /// The same with other protocols, which Pingora and the bare forwarder do not know here.
    pub(super) fn prepare_edge(
        self,
        programs: &Programs,
        work: &Path,
        origin: u16,
        edge: &Edge,
    ) -> anyhow::Result<Launch> {
        let program = programs.path(self).with_context(|| format!("{} is not installed", self.label()))?;
        let port = free_port()?;
        let place = Workplace::new(work, &self.label())?;
        let arguments: Vec<String> = match self {
            Self::Sigma { routes } => {
                vec![
                    "run".into(),
                    "-c".into(),
                    place.write("sigma.yaml", &sigma(port, origin, routes, edge))?,
                ]
            }
            Self::Nginx { keepalive } => {
                let config = place.write("nginx.conf", &nginx(port, origin, keepalive, edge))?;
                let prefix = place.folder.display().to_string();
                vec!["-p".into(), prefix, "-c".into(), config, "-e".into(), "stderr".into()]
            }
            Self::Haproxy => {
                vec!["-db".into(), "-f".into(), place.write("haproxy.cfg", &haproxy(port, origin, edge))?]
            }
            Self::Envoy => {
                let config = place.write("envoy.yaml", &envoy(port, origin, edge))?;
                let flags = ["--concurrency", "1", "--disable-hot-restart", "--log-level", "error"];
                ["-c", config.as_str()].into_iter().chain(flags).map(str::to_owned).collect()
            }
            Self::Pingora | Self::Floor => vec![port.to_string(), origin.to_string()],
        };
        let command = std::iter::once(program.display().to_string()).chain(arguments).collect();
        Ok(Launch { label: self.label(), command, log: place.folder.join("log"), port })
    }
}

fn sigma(port: u16, origin: u16, routes: u32, edge: &Edge) -> String {
    let alpn = edge.clients.alpn();
    let (tls, resumption) = match &edge.certificate {
        None => (String::new(), ""),
        Some(Certificate { chain, key, .. }) => (
            format!(
                ", tls: {{ protocols: [TLSv1.3], alpn: [{alpn}], \
                 certificates: [ {{ cert: \"{chain}\", key: \"{key}\" }} ] }}"
            ),
            "tls: { resumption: \"off\" }\n",
        ),
    };
    let scheme = match edge.origin {
        Protocol::Http1 => "",
        Protocol::Http2 => ", scheme: grpc",
    };
    let (limits, pool) = match edge.pool {
        0 => ("", String::new()),
        size => (
            "limits: { keepalive_requests: 100000000 }\n",
            format!(", keepalive_pool: {{ size: {size}, requests: 100000000 }}"),
        ),
    };
    let http3 = if edge.http3 { ", http3: true" } else { "" };
    let mut text = format!(
        "workers: 1\n\
         listeners: [ {{ address: \"127.0.0.1:{port}\"{http3}{tls} }} ]\n\
         {resumption}{limits}\
         access_log: \"off\"\n\
         upstreams: [ {{ id: \"1\", type: roundrobin, nodes: {{ \"127.0.0.1:{origin}\": 1 }}{scheme}{pool} }} ]\n\
         routes:\n"
    );
    for number in 0..routes {
        let uri = if routes == 1 { "/*".to_owned() } else { format!("/r/{number}/*") };
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  - {{ id: \"{}\", uri: \"{uri}\", upstream_id: \"1\" }}", number + 1);
    }
    text
}

fn nginx(port: u16, origin: u16, keepalive: u32, edge: &Edge) -> String {
    let keepalive = keepalive.max(edge.pool);
    let http2 = match edge.clients {
        Protocol::Http1 => "",
        Protocol::Http2 => " http2",
    };
    let (ssl, certificate) = match &edge.certificate {
        None => ("", String::new()),
        Some(Certificate { chain, key, .. }) => (
            " ssl",
            format!(
                "ssl_protocols TLSv1.3; ssl_session_cache off; ssl_session_tickets off;
    ssl_certificate {chain}; ssl_certificate_key {key};"
            ),
        ),
    };
    let http3 = match edge.http3 {
        true => format!("listen 127.0.0.1:{port} quic; quic_gso on;"),
        false => String::new(),
    };
    let pass = nginx_pass(edge.origin);
    format!(
        "daemon off;
worker_processes 1;
error_log stderr error;
pid nginx.pid;
events {{ worker_connections 19000; }}
http {{
  access_log off;
  client_body_temp_path body;
  proxy_temp_path proxy;
  fastcgi_temp_path fastcgi;
  uwsgi_temp_path uwsgi;
  scgi_temp_path scgi;
  keepalive_timeout 300s;
  keepalive_requests 100000000;
  client_max_body_size 0;
  upstream origin {{
    server 127.0.0.1:{origin};
    keepalive {keepalive};
    keepalive_requests 100000000;
  }}
  server {{
    listen 127.0.0.1:{port}{ssl}{http2} backlog=4096;
    {http3}
    {certificate}
    location / {{
      {pass}
    }}
  }}
}}
"
    )
}

/// Returns a configuration of nginx that runs `function` for each request, by the Lua module in this file; an empty one
/// does nothing.
pub(super) fn nginx_with_lua(port: u16, origin: u16, module: &str, function: &str) -> String {
    let text = nginx(port, origin, 512, &Edge::PLAIN);
    let block = match function {
        "" => String::new(),
        function => format!("access_by_lua_block {{ {function} }}\n      "),
    };
    let text = text.replace("proxy_pass http", &format!("{block}proxy_pass http"));
    let kit = module.replace("ngx_http_lua", "ndk_http");
    format!("load_module {kit};\nload_module {module};\n{text}")
}

/// Returns nginx's directives for a request.
fn nginx_pass(origin: Protocol) -> &'static str {
    match origin {
        Protocol::Http1 => {
            "proxy_pass http://origin;
      proxy_http_version 1.1;
      proxy_set_header Connection \"\";
      proxy_set_header Host $host;
      proxy_set_header X-Real-IP $remote_addr;
      proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
      proxy_request_buffering off;
      proxy_max_temp_file_size 0;"
        }
        Protocol::Http2 => {
            "grpc_pass grpc://origin;
      grpc_set_header Host $host;
      grpc_set_header X-Real-IP $remote_addr;
      grpc_set_header X-Forwarded-For $proxy_add_x_forwarded_for;"
        }
    }
}

fn haproxy(port: u16, origin: u16, edge: &Edge) -> String {
    let pool = edge.pool.max(512);
    let bind = match (&edge.certificate, edge.clients) {
        (None, Protocol::Http1) => String::new(),
        (None, Protocol::Http2) => " proto h2".to_owned(),
        (Some(Certificate { both, .. }), clients) => {
            format!(" ssl crt {both} ssl-min-ver TLSv1.3 no-tls-tickets alpn {}", clients.alpn())
        }
    };
    let cache = if edge.certificate.is_some() { "\n  tune.ssl.cachesize 0" } else { "" };
    let server = match edge.origin {
        Protocol::Http1 => "",
        Protocol::Http2 => " proto h2",
    };
    format!(
        "global
  nbthread 1
  maxconn 9900{cache}
defaults
  mode http
  option http-keep-alive
  option forwardfor
  http-reuse always
  timeout connect 5s
  timeout client 300s
  timeout server 300s
  timeout http-keep-alive 300s
frontend bench
  bind 127.0.0.1:{port} backlog 4096{bind}
  http-request set-header X-Real-IP %[src]
  default_backend origin
backend origin
  server origin 127.0.0.1:{origin} pool-max-conn {pool}{server}
"
    )
}

/// Returns a configuration of Envoy with a filter before its router, and further clusters; empty texts for none.
pub(super) fn envoy_with(port: u16, origin: u16, filter: &str, clusters: &str) -> String {
    const ROUTER: &str = "          - name: envoy.filters.http.router\n";
    envoy(port, origin, &Edge::PLAIN).replace(ROUTER, &format!("{filter}{ROUTER}")) + clusters
}

fn envoy(port: u16, origin: u16, edge: &Edge) -> String {
    let tls = edge.certificate.as_ref().map_or_else(String::new, |Certificate { chain, key, .. }| {
        let alpn = edge.clients.alpn();
        format!(
            "
      transport_socket:
        name: envoy.transport_sockets.tls
        typed_config:
          \"@type\": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext
          disable_stateless_session_resumption: true
          disable_stateful_session_resumption: true
          common_tls_context:
            alpn_protocols: [ {alpn} ]
            tls_params: {{ tls_minimum_protocol_version: TLSv1_3, tls_maximum_protocol_version: TLSv1_3 }}
            tls_certificates: [ {{ certificate_chain: {{ filename: {chain} }}, private_key: {{ filename: {key} }} }} ]"
        )
    });
    let http2 = match edge.origin {
        Protocol::Http1 => "",
        Protocol::Http2 => {
            "
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        \"@type\": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: { http2_protocol_options: {} }"
        }
    };
    format!(
        "static_resources:
  listeners:
  - address: {{ socket_address: {{ address: 127.0.0.1, port_value: {port} }} }}
    filter_chains:
    -{tls}
      filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          \"@type\": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: bench
          use_remote_address: true
          generate_request_id: false
          http_filters:
          - name: envoy.filters.http.router
            typed_config:
              \"@type\": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
              suppress_envoy_headers: true
          route_config:
            virtual_hosts:
            - name: all
              domains: [\"*\"]
              routes:
              - match: {{ prefix: / }}
                route: {{ cluster: origin, timeout: 0s }}
                request_headers_to_add:
                - header: {{ key: X-Real-IP, value: \"%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%\" }}
  clusters:
  - name: origin
    type: STATIC
    connect_timeout: 5s{http2}
    circuit_breakers: {{ thresholds: [ {{ max_connections: 20000, max_pending_requests: 20000, max_requests: 20000 }} ] }}
    load_assignment:
      cluster_name: origin
      endpoints:
      - lb_endpoints:
        - endpoint: {{ address: {{ socket_address: {{ address: 127.0.0.1, port_value: {origin} }} }} }}
"
    )
}
