//! The gateways as forwarders of bytes over TCP, and of datagrams where they do that: one worker, one port, one node,
//! no log.

use std::path::Path;

use anyhow::{Context, bail};
use rustix::process::{Resource, getrlimit};

use super::contender::{Contender, Programs};
use super::launch::{Launch, Workplace};
use super::process::free_port;

/// Where Debian puts nginx's module for streams.
const NGINX_MODULE: &str = "/usr/lib/nginx/modules/ngx_stream_module.so";

/// The contenders that forward bytes, in the order of tables.
pub(super) const CONTENDERS: [Contender; 4] = [
    Contender::Sigma { routes: 1 },
    Contender::Nginx { keepalive: 512 },
    Contender::Haproxy,
    Contender::Floor,
];

/// Whether a contender forwards datagrams too.
pub(super) fn takes_datagrams(contender: Contender) -> bool {
    matches!(contender, Contender::Sigma { .. } | Contender::Nginx { .. })
}

/// Everything that precedes the start of `contender` between a free port and `origin`.
pub(super) fn prepare(
    contender: Contender,
    programs: &Programs,
    work: &Path,
    origin: u16,
) -> anyhow::Result<Launch> {
    let label = contender.label();
    let program = programs.path(contender).with_context(|| format!("{label} is not installed"))?;
    let port = free_port()?;
    let place = Workplace::new(work, &format!("{label} streams"))?;
    let arguments: Vec<String> = match contender {
        Contender::Sigma { .. } => {
            vec!["run".into(), "-c".into(), place.write("sigma.yaml", &sigma(port, origin))?]
        }
        Contender::Nginx { .. } => {
            let config = place.write("nginx.conf", &nginx(port, origin))?;
            let prefix = place.folder.display().to_string();
            vec!["-p".into(), prefix, "-c".into(), config, "-e".into(), "stderr".into()]
        }
        Contender::Haproxy => {
            vec![
                "-db".into(),
                "-f".into(),
                place.write("haproxy.cfg", &haproxy(port, origin, sessions_max()))?,
            ]
        }
        Contender::Floor => vec![port.to_string(), origin.to_string(), "bytes".into()],
        Contender::Envoy | Contender::Pingora => bail!("{label} forwards no bytes here"),
    };
    let command = std::iter::once(program.display().to_string()).chain(arguments).collect();
    Ok(Launch { label, command, log: place.folder.join("log"), port })
}

fn sigma(port: u16, origin: u16) -> String {
    format!(
        "workers: 1\n\
         listeners:\n\
         - {{ address: \"127.0.0.1:{port}\", stream: tcp }}\n\
         - {{ address: \"127.0.0.1:{port}\", stream: udp }}\n\
         access_log: \"off\"\n\
         stream_routes: [ {{ id: \"1\", upstream: {{ scheme: tcp, nodes: {{ \"127.0.0.1:{origin}\": 1 }} }} }} ]\n"
    )
}

/// nginx forwards the end of one side only if it is configured, which the others do by default.
fn nginx(port: u16, origin: u16) -> String {
    format!(
        "load_module {NGINX_MODULE};
daemon off;
worker_processes 1;
error_log stderr error;
pid nginx.pid;
events {{ worker_connections 25000; }}
stream {{
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    proxy_pass 127.0.0.1:{origin};
    proxy_half_close on;
  }}
  server {{
    listen 127.0.0.1:{port} udp;
    proxy_timeout 60s;
    proxy_pass 127.0.0.1:{origin};
  }}
}}
"
    )
}

/// The number of sessions for HAProxy: it does not start where it may not open as many files as that needs.
fn sessions_max() -> u64 {
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    (files / 2).saturating_sub(250).min(12_000)
}

fn haproxy(port: u16, origin: u16, sessions: u64) -> String {
    format!(
        "global
  nbthread 1
  maxconn {sessions}
defaults
  mode tcp
  timeout connect 5s
  timeout client 300s
  timeout server 300s
frontend bench
  bind 127.0.0.1:{port} backlog 4096
  default_backend origin
backend origin
  server origin 127.0.0.1:{origin}
"
    )
}
