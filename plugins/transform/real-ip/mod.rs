//! `real-ip`: the client's address as a proxy before this one tells it.

use std::net::IpAddr;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use sigma_config::stored::TRUSTS_ANY_PEER;
use sigma_http::HeaderId;
use sigma_plugin::forwarded::{self, parse};
use sigma_plugin::variable_fields::{VariableField, VariableForm};
use sigma_plugin::{Configuration, Context, Descriptor, Env, Phase, PhaseSet, Plugin, Step};
use sigma_schema::Problem;
use sigma_schema::cidr::CidrSet;
use sigma_schema::expr::{VarName, VarValue, Variables};

use sigma_plugin_kit::log_throttle::LogThrottle;
use sigma_plugin_kit::networks::Networks;

/// The fields that tell of a chain of proxies, as variables name them.
const FORWARDED: &str = "forwarded";
const FORWARDED_FOR: &str = "x-forwarded-for";

/// The plugin.
pub(crate) static REAL_IP: Descriptor = Descriptor {
    name: "real-ip",
    priority: 23000,
    example: include_str!("example.md"),
    phases: PhaseSet::of(&[Phase::Rewrite]),
    variables: &[VariableField::guard("source", VariableForm::Name)],
    warnings: Some(|_, conf| warnings(conf)),
    ..Descriptor::itself::<RealIp>()
};

/// Sets the client's address from a variable, such as a field of a proxy.
///
/// It runs first, so that address rules, limits and logs use this address. `realip_remote_addr` keeps the address of
/// the peer. In a global rule it covers requests without a route too.
#[derive(Deserialize, JsonSchema)]
struct RealIp {
    /// The variable with the address, e.g. `http_x_forwarded_for` or `arg_realip`; it may have a port. With
    /// `http_forwarded` (RFC 7239) the address is the value of `for`. The field `Forwarded` is only accepted from peers
    /// in the setting `trusted_addresses`; it is removed for others before plugins run.
    #[schemars(length(min = 1))]
    source: VarName,
    /// Peers that may send the address. Default: the peers in the setting `trusted_addresses`; if it is empty, all
    /// peers.
    #[schemars(length(min = 1))]
    #[schemars(extend("items" = {"type": "string", "description": "An address or a network."}))]
    trusted_addresses: Option<Networks>,
    /// Whether all peers are trusted if both this list and the setting are empty; true by default, false with
    /// `profile: edge`. Sigma's own.
    trust_any_peer: Option<bool>,
    /// For `X-Forwarded-For` and `Forwarded`: skips trusted addresses from the right.
    #[schemars(extend("default" = false))]
    recursive: bool,
    /// For `X-Forwarded-For` and `Forwarded`: number of proxies in front of the gateway. The client's address is the
    /// element at this position from the right; with fewer elements it is the peer's address. Not with `recursive`.
    /// Sigma's own.
    #[schemars(range(min = 1))]
    hops: Option<usize>,
}

impl Configuration for RealIp {
    fn check(&self) -> Result<(), String> {
        let is_chain =
            [FORWARDED, FORWARDED_FOR].iter().any(|name| self.source == VarName::Http((*name).to_owned()));
        match self.hops {
            Some(_) if self.recursive => {
                Err("hops and recursive cannot be specified at the same time".to_owned())
            }
            Some(_) if !is_chain => {
                Err("hops: only http_x_forwarded_for and http_forwarded list several proxies".to_owned())
            }
            _ => Ok(()),
        }
    }
}

/// The warning that any client may choose its address.
fn warnings(conf: &Value) -> Vec<Problem> {
    if conf.get("trusted_addresses").is_some() || conf.get("trust_any_peer") == Some(&Value::Bool(false)) {
        return Vec::new();
    }
    let message = "every client can choose its address, because all peers are trusted";
    let hint = "list the proxies in front in `trusted_addresses`, here or in the settings";
    vec![Problem::new("trusted_addresses", TRUSTS_ANY_PEER, message).hint(hint)]
}

/// The peers that are believed.
#[derive(Clone, Copy)]
enum Believed<'a> {
    All,
    Listed(&'a Networks),
    /// The networks of the setting.
    Proxies(&'a CidrSet),
    NoPeer,
}

impl Believed<'_> {
    fn contains(self, addr: IpAddr) -> bool {
        match self {
            Believed::All => true,
            Believed::Listed(list) => list.contains(addr),
            Believed::Proxies(proxies) => proxies.contains(addr),
            Believed::NoPeer => false,
        }
    }
}

impl RealIp {
    fn believed<'a>(&'a self, env: &Env<'a>) -> Believed<'a> {
        let proxies = env.trusted.filter(|proxies| !proxies.is_empty());
        match (&self.trusted_addresses, self.trust_any_peer, proxies) {
            (Some(list), ..) => Believed::Listed(list),
            (None, Some(true), _) => Believed::All,
            (None, _, Some(proxies)) => Believed::Proxies(proxies),
            (None, None, None) => Believed::All,
            (None, Some(false), None) => Believed::NoPeer,
        }
    }

    fn address_text(&self, believed: Believed<'_>, ctx: &Context) -> Option<Vec<u8>> {
        let is_field = |name: &str| self.source == VarName::Http(name.to_owned());
        if is_field(FORWARDED) {
            let lines = ctx.request.headers.get_all(HeaderId::Forwarded);
            return self.chosen(believed, lines.flat_map(forwarded::forwarded).collect());
        }
        if is_field(FORWARDED_FOR) {
            let mut lines: Vec<&[u8]> = ctx.request.headers.get_all(HeaderId::XForwardedFor).collect();
            if self.hops.is_none() {
                // As in APISIX, earlier fields are not used.
                lines = lines.pop().into_iter().collect();
            }
            let items = lines.into_iter().flat_map(forwarded::forwarded_for);
            return self.chosen(believed, items.collect());
        }
        match ctx.get(&self.source)? {
            VarValue::Text(text) => Some(text.into_owned()),
            VarValue::Bool(truth) => Some(truth.to_string().into_bytes()),
            VarValue::List(_) => None,
        }
    }

    /// The client's among the addresses of a chain: the last one, the last one that is not trusted, or that which as
    /// many proxies as there are lead to.
    fn chosen(&self, believed: Believed<'_>, chain: Vec<&[u8]>) -> Option<Vec<u8>> {
        let mut chain = chain.into_iter();
        let chosen = match self.hops {
            Some(hops) => chain.nth_back(hops - 1),
            None if !self.recursive || matches!(believed, Believed::All) => chain.next_back(),
            None => forwarded::first_untrusted(chain, |addr| believed.contains(addr)),
        };
        chosen.map(<[u8]>::to_vec)
    }
}

/// Clients decide how often this happens.
fn complain(reason: &str) {
    static COMPLAINT: LogThrottle = LogThrottle::new();
    if let Some(left_out) = COMPLAINT.due() {
        tracing::warn!(left_out, "real-ip: {reason}");
    }
}

impl Plugin for RealIp {
    fn rewrite(&self, ctx: &mut Context, env: &Env<'_>) -> Step {
        let believed = self.believed(env);
        let is_believed = |addr: IpAddr| believed.contains(addr);
        if !matches!(believed, Believed::All) && !ctx.client.addr.is_some_and(is_believed) {
            return Step::Next;
        }
        match self.address_text(believed, ctx).map(|text| parse(&text)) {
            None => complain("missing real address"),
            Some(Err(reason)) => complain(&reason),
            Some(Ok((addr, port))) => {
                ctx.client.addr = Some(addr);
                ctx.client.port = port.unwrap_or(0);
            }
        }
        Step::Next
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use sigma_plugin::Consumers;

    use super::*;
    use crate::testing::{Case, entry, refusal};

    fn check(conf: Value, fields: &str, expected: &str) {
        let plugin = entry("real-ip", conf.clone()).unwrap();
        let mut case = Case::new(&format!("GET /?ip=9.9.9.9 HTTP/1.1\nHost: x\n{fields}"));
        case.ctx.client.port = 1000;
        case.run(&plugin, Phase::Rewrite);
        let client = &case.ctx.client;
        assert_eq!(format!("{} {}", case.ctx.remote_addr(), client.port), expected, "{conf} {fields}");
        assert_eq!(client.peer, "127.0.0.1".parse().ok());
    }

    #[test]
    fn addresses_are_taken_from_their_source() {
        let source = |name: &str| json!({"source": name});
        let unchanged = "127.0.0.1 1000";
        check(source("arg_ip"), "", "9.9.9.9 0");
        check(source("arg_none"), "", unchanged);
        check(source("http_x_real_ip"), "X-Real-IP: 1.2.3.4:80", "1.2.3.4 80");
        check(source("http_x_real_ip"), "X-Real-IP: [::1]:80", "::1 80");
        check(source("http_x_real_ip"), "X-Real-IP: [2001:db8::1]", "2001:db8::1 0");
        check(source("http_x_real_ip"), "X-Real-IP: 2001:db8::1", "2001:db8::1 0");
        for bad in ["", "here", "1.2.3.4:0", "1.2.3.4:65536", "1.2.3.4:a", "[::1", "[::1]80", "1.2.3"] {
            check(source("http_x_real_ip"), &format!("X-Real-IP: {bad}"), unchanged);
        }
        check(source("http_x_forwarded_for"), "X-Forwarded-For: 1.1.1.1, 2.2.2.2", "2.2.2.2 0");
        check(
            source("http_x_forwarded_for"),
            "X-Forwarded-For: 1.1.1.1\nX-Forwarded-For: 3.3.3.3",
            "3.3.3.3 0",
        );
    }

    #[test]
    fn only_trusted_peers_are_believed() {
        let conf = |trusted: &str, recursive: bool| json!({"source": "http_x_forwarded_for", "trusted_addresses": ["127.0.0.0/24", trusted], "recursive": recursive});
        let chain = "X-Forwarded-For: 1.1.1.1, 2.2.2.2, 10.0.0.2,10.0.0.1";
        check(conf("10.0.0.0/8", false), chain, "10.0.0.1 0");
        check(conf("10.0.0.0/8", true), chain, "2.2.2.2 0");
        check(conf("0.0.0.0/0", true), chain, "1.1.1.1 0");
        check(json!({"source": "arg_ip", "trusted_addresses": ["10.0.0.1"]}), "", "127.0.0.1 1000");
        check(json!({"source": "http_x_forwarded_for", "recursive": true}), chain, "10.0.0.1 0");
    }

    #[test]
    fn the_setting_is_the_default_of_the_list() {
        let check = |conf: Value, trusted: &[&str], believes: bool| {
            let plugin = entry("real-ip", conf.clone()).unwrap();
            let mut case = Case::new("GET / HTTP/1.1\nHost: x\nX-Real-IP: 9.9.9.9");
            let (node, local, consumers) = Default::default();
            let trusted: CidrSet = serde_json::from_value(json!(trusted)).unwrap();
            let env = Env { trusted: Some(&trusted), ..Env::new(&node, &local, &consumers) };
            let _: &Consumers = &consumers;
            plugin.plugin.rewrite(&mut case.ctx, &env);
            assert_eq!(case.ctx.remote_addr() == "9.9.9.9", believes, "{conf} {trusted:?}");
        };
        let source = json!({"source": "http_x_real_ip"});
        check(source.clone(), &[], true);
        check(source.clone(), &["127.0.0.0/8"], true);
        check(source, &["10.0.0.0/8"], false);
        let any = |any: bool| json!({"source": "http_x_real_ip", "trust_any_peer": any});
        check(any(true), &["10.0.0.0/8"], true);
        check(any(false), &["127.0.0.1"], true);
        check(any(false), &[], false);
        let list = json!({"source": "http_x_real_ip", "trusted_addresses": ["10.0.0.1"]});
        check(list, &["127.0.0.1"], false);
    }

    #[test]
    fn belief_in_all_peers_is_warned_of() {
        let check = |conf: Value, warns: bool| assert_eq!(!warnings(&conf).is_empty(), warns, "{conf}");
        check(json!({"source": "http_x_real_ip"}), true);
        check(json!({"source": "http_x_real_ip", "trusted_addresses": ["10.0.0.1"]}), false);
        check(json!({"source": "http_x_real_ip", "trust_any_peer": false}), false);
    }

    #[test]
    fn values_of_a_client_are_one_short_line_in_the_log() {
        let reason = parse(&[&b"x\nERROR made up\x1b[0m"[..], &[b'y'; 9000]].concat()).unwrap_err();
        assert!(reason.starts_with("bad address: x\\nERROR made up\\u{1b}"), "{reason}");
        assert!(reason.len() < 100 && !reason.contains(['\n', '\x1b']), "{reason}");
        let reason = parse(b"1.2.3.4:1\n2").unwrap_err();
        assert_eq!(reason, "bad port: 1\\n2");
    }

    #[test]
    fn forwarded_is_read() {
        let conf = json!({"source": "http_forwarded"});
        let unchanged = "127.0.0.1 1000";
        check(conf.clone(), "Forwarded: for=1.2.3.4;proto=https, FOR=\"5.6.7.8:90\";by=a", "5.6.7.8 90");
        check(conf.clone(), "Forwarded: by=\"a;for=9.9.9.9,\";for=\"[2001:db8::1]:5\"", "2001:db8::1 5");
        for nobody in ["for=unknown", "for=_hidden", "proto=http", "", "for=1.2.3.4, by=a"] {
            check(conf.clone(), &format!("Forwarded: {nobody}"), unchanged);
        }
        let recursive = json!({"source": "http_forwarded", "recursive": true, "trusted_addresses": ["127.0.0.1", "10.0.0.0/8"]});
        check(recursive, "Forwarded: for=8.8.8.8, for=1.2.3.4\nForwarded: for=10.1.1.1", "1.2.3.4 0");
    }

    #[test]
    fn hops_are_counted_from_the_right() {
        let conf = |hops: usize| json!({"source": "http_x_forwarded_for", "hops": hops});
        let fields = "X-Forwarded-For: 9.9.9.9, 1.2.3.4\nX-Forwarded-For: 10.0.0.1";
        check(conf(1), fields, "10.0.0.1 0");
        check(conf(2), fields, "1.2.3.4 0");
        check(conf(4), fields, "127.0.0.1 1000");
        check(
            json!({"source": "http_forwarded", "hops": 2}),
            "Forwarded: for=1.1.1.1, for=2.2.2.2",
            "1.1.1.1 0",
        );
        let both = json!({"source": "http_forwarded", "hops": 2, "recursive": true});
        assert_eq!(refusal("real-ip", &both), "hops and recursive cannot be specified at the same time");
        assert!(refusal("real-ip", &json!({"source": "arg_a", "hops": 2})).starts_with("hops: only"));
    }

    #[test]
    fn wrong_configurations_are_refused() {
        let check = |conf: Value, expected: &str| assert_eq!(refusal("real-ip", &conf), expected);
        check(json!({}), "property \"source\" is required");
        check(
            json!({"source": "a", "trusted_addresses": ["127.0.0.1/33"]}),
            "invalid ip address: 127.0.0.1/33",
        );
    }
}
