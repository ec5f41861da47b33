//! `stream {}`: sessions of TCP, TLS and UDP.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::super::decision::Listener;
use super::super::report::Verdict;
use super::access::option;
use super::addresses::Addresses;
use super::converter::Converter;
use super::level::{Level, milliseconds};
use super::parse::Directive;
use super::upstreams::{self, seconds};

impl<'a> Converter<'a> {
    /// Converts a block `stream`.
    pub(super) fn stream(&mut self, block: &'a Directive) {
        let level = Level::of(block.children(), None, false);
        let mut maps: BTreeMap<String, &'a Directive> = BTreeMap::new();
        for map in level.own_all(&["map"]) {
            maps.insert(map.arg(1).trim_start_matches('$').to_owned(), map);
        }
        for group in level.own_all(&["upstream"]) {
            self.group(group);
        }
        for server in level.own_all(&["server"]) {
            let own = Level::of(server.children(), Some(&level), false);
            self.stream_server(server, &own, &maps);
        }
    }

    fn stream_server(
        &mut self,
        server: &'a Directive,
        level: &Level<'a>,
        maps: &BTreeMap<String, &'a Directive>,
    ) {
        let Some(pass) = level.own("proxy_pass") else {
            self.remark(
                server,
                Verdict::NotPossible,
                "a stream server needs `proxy_pass`; it was not converted",
            );
            return;
        };
        let is_preread = level.is_on("ssl_preread");
        for listen in level.own_all(&["listen"]) {
            let is_udp = listen.args.iter().any(|arg| arg == "udp");
            let is_tls = listen.args.iter().any(|arg| arg == "ssl");
            let text = listen.arg(0);
            let (address, port) = match text.parse::<u16>() {
                Ok(port) => (format!("0.0.0.0:{port}"), port),
                Err(_) => (
                    text.replace("*:", "0.0.0.0:"),
                    text.rsplit(':').next().and_then(|it| it.parse().ok()).unwrap_or(0),
                ),
            };
            if port == 0 {
                self.remark(listen, Verdict::NotPossible, "the address is invalid and was not converted");
                continue;
            }
            let kind = if is_udp {
                "udp"
            } else if is_tls || is_preread {
                "tls"
            } else {
                "tcp"
            };
            let mut fields = Map::new();
            fields.insert("stream".to_owned(), kind.into());
            if listen.args.iter().any(|arg| arg == "proxy_protocol") {
                fields.insert("proxy_protocol".to_owned(), json!({"trusted": ["0.0.0.0/0", "::/0"]}));
            }
            self.plan.listeners.push(Listener { address, port, fields });
            let session = Session { port, is_udp, is_preread, kind };
            self.sessions(pass, level, maps, &session);
        }
    }

    /// The routes of one listener: one, or one for each server name of a map.
    fn sessions(
        &mut self,
        pass: &'a Directive,
        level: &Level<'a>,
        maps: &BTreeMap<String, &'a Directive>,
        session: &Session,
    ) {
        let target = pass.arg(0);
        let Some(name) = target.strip_prefix('$') else {
            return self.session(pass, level, session, target, None);
        };
        let map = maps.get(name).filter(|map| map.arg(0) == "$ssl_preread_server_name");
        let Some(map) = map else {
            let text = "this variable is not supported as a target; sessions of the listener are closed";
            return self.remark(pass, Verdict::NotPossible, text);
        };
        let mut default = None;
        for entry in map.children() {
            match entry.name.as_str() {
                "hostnames" | "volatile" => {}
                "default" => default = Some(entry.arg(0).to_owned()),
                name if name.starts_with('~') => {
                    let text = "regular expressions as server names are not supported: list the names";
                    self.remark(entry, Verdict::NotPossible, text);
                }
                name => {
                    let sni = name.strip_prefix('.').map_or(name.to_owned(), |rest| format!("*.{rest}"));
                    self.session(pass, level, session, entry.arg(0), Some(&sni));
                    if let Some(rest) = name.strip_prefix('.') {
                        self.session(pass, level, session, entry.arg(0), Some(rest));
                    }
                }
            }
        }
        if let Some(default) = default {
            self.session(pass, level, session, &default, None);
        }
    }

    fn session(
        &mut self,
        pass: &Directive,
        level: &Level<'a>,
        session: &Session,
        target: &str,
        sni: Option<&str>,
    ) {
        if target.contains('$') {
            self.remark(
                pass,
                Verdict::NotPossible,
                "a target with variables is not supported; it was not converted",
            );
            return;
        }
        let mut route = Map::new();
        let number = self.plan.streams.len() + 1;
        route.insert("id".to_owned(), format!("stream-{number}").into());
        route.insert("server_port".to_owned(), session.port.into());
        if let Some(sni) = sni {
            route.insert("sni".to_owned(), sni.into());
        }
        if session.kind == "tls" && session.is_preread {
            route.insert("tls".to_owned(), "passthrough".into());
        }
        if session.is_udp
            && let Some(number) = level.text("proxy_responses").and_then(|text| text.parse::<u64>().ok())
        {
            route.insert("udp".to_owned(), json!({"responses": number}));
        }
        let mut plugins = Map::new();
        let rules = level.all(&["allow", "deny"]);
        let mut addresses = Addresses::default();
        for rule in &rules {
            if !addresses.add(rule.name == "allow", rule.arg(0)) {
                self.guard(rule, Verdict::NotPossible, "the address is invalid; all sessions are refused");
                addresses = Addresses::default();
                addresses.add(false, "all");
                break;
            }
        }
        if let Some(plugin) = addresses.plugin() {
            plugins.insert("ip-restriction".to_owned(), plugin);
        }
        if let Some(limit) = level.last("limit_conn")
            && let Ok(number) = limit.arg(1).parse::<u64>()
        {
            let plugin =
                json!({"conn": number.max(1), "burst": 0, "default_conn_delay": 0.1, "key": "remote_addr"});
            plugins.insert("limit-conn".to_owned(), plugin);
        }
        if !plugins.is_empty() {
            route.insert("plugins".to_owned(), Value::Object(plugins));
        }
        let id = self.stream_upstream(level, session, target);
        route.insert("upstream_id".to_owned(), id.into());
        self.plan.streams.push(Value::Object(route));
    }

    fn stream_upstream(&mut self, level: &Level<'a>, session: &Session, target: &str) -> String {
        let mut fields = Map::new();
        let connect = level.text("proxy_connect_timeout").and_then(milliseconds);
        let idle = level.text("proxy_timeout").and_then(milliseconds);
        if connect.is_some() || idle.is_some() {
            let connect = seconds(connect.unwrap_or(60_000).max(1));
            let idle = seconds(idle.unwrap_or(600_000).max(1));
            fields.insert("timeout".to_owned(), json!({"connect": connect, "send": idle, "read": idle}));
        }
        if level.is_on("proxy_protocol") {
            fields.insert("proxy_protocol".to_owned(), "v1".into());
        }
        let scheme = if session.is_udp {
            "udp"
        } else if level.is_on("proxy_ssl") {
            "tls"
        } else {
            "tcp"
        };
        let wanted = upstreams::UpstreamSpec { scheme, authority: target, family: "proxy", fields };
        self.upstream(wanted, level)
    }

    /// Zones of limits, whose option is read later.
    pub(super) fn zone(&mut self, directive: &'a Directive) {
        let name = option(directive, "zone").map(|zone| zone.split(':').next().unwrap_or(zone).to_owned());
        if let Some(name) = name {
            self.blocks.zones.insert(name, directive);
        }
    }
}

/// A listener of sessions.
struct Session {
    port: u16,
    is_udp: bool,
    is_preread: bool,
    kind: &'static str,
}
