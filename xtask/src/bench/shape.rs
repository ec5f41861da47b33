//! The shapes of traffic, each of which weighs another part of a gateway.

use super::contender::Contender;

/// One shape of traffic.
pub(super) struct Shape {
    /// The name on the command line and of its results file.
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    pub(super) kind: Kind,
}

pub(super) enum Kind {
    Load(Load),
    /// Memory held by connections that made one request and idle.
    Idle {
        connections: u32,
    },
    /// Time from the start of the process to its first response.
    StartUp,
}

/// The requests of the load generator.
pub(super) struct Load {
    pub(super) connections: u32,
    pub(super) method: &'static str,
    pub(super) path: &'static str,
    pub(super) body_bytes: u32,
    /// Ask for the connection to be closed after each response.
    pub(super) close: bool,
}

/// A small GET on kept connections.
pub(super) const SMALL: Load =
    Load { connections: 100, method: "GET", path: "/", body_bytes: 0, close: false };

/// All shapes, in the order of the report.
pub(super) fn all() -> Vec<Shape> {
    let load = |name, title, load| Shape { name, title, kind: Kind::Load(load) };
    vec![
        load("keepalive-100", "small GET, 100 kept connections", SMALL),
        load("keepalive-1", "small GET, 1 kept connection", Load { connections: 1, ..SMALL }),
        load("keepalive-500", "small GET, 500 kept connections", Load { connections: 500, ..SMALL }),
        load(
            "post-1k",
            "POST of 1 KiB, 100 kept connections",
            Load { method: "POST", body_bytes: 1024, ..SMALL },
        ),
        load(
            "download-1m",
            "GET of 1 MiB, 20 kept connections",
            Load { connections: 20, path: "/1m", ..SMALL },
        ),
        load(
            "upload-1m",
            "POST of 1 MiB, 20 kept connections",
            Load { connections: 20, method: "POST", body_bytes: 1 << 20, ..SMALL },
        ),
        load("new-connection", "small GET, a new connection for each request", Load { close: true, ..SMALL }),
        load("routes", "small GET, 100 kept connections, 1 to 100,000 routes", SMALL),
        Shape {
            name: "idle-9000",
            title: "memory of 9,000 idle kept connections",
            kind: Kind::Idle { connections: 9000 },
        },
        Shape { name: "start-up", title: "start-up to the first answer", kind: Kind::StartUp },
    ]
}

impl Shape {
    /// The gateways that this shape compares.
    pub(super) fn contenders(&self) -> Vec<Contender> {
        if self.name == "routes" {
            return [1, 1_000, 100_000].map(|routes| Contender::Sigma { routes }).to_vec();
        }
        let mut all = vec![
            Contender::Sigma { routes: 1 },
            Contender::Nginx { keepalive: 512 },
            Contender::Haproxy,
            Contender::Floor,
            Contender::Pingora,
            Contender::Envoy,
        ];
        if self.name == "keepalive-100" {
            all.insert(2, Contender::Nginx { keepalive: 16 });
        }
        all
    }
}
