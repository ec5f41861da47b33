//! `real-ip`: the client's address as a proxy before this one tells it.

use std::net::IpAddr;

use schemars::JsonSchema;
use serde::Deserialize;
use sigma_config::expr::{VarName, VarValue, Variables};
use sigma_http::HeaderId;
use sigma_plugin::places::{VariableForm, VariablePlace};
use sigma_plugin::{Configuration, Context, Descriptor, Env, Phase, PhaseSet, Plugin, Step};

use crate::log_throttle::LogThrottle;
use crate::networks::Networks;

/// Characters of a wrong address that the error log shows.
const SHOWN_CHARS: usize = 64;

/// The plugin.
pub(crate) static REAL_IP: Descriptor = Descriptor {
    name: "real-ip",
    priority: 23000,
    example: EXAMPLE,
    phases: PhaseSet::of(&[Phase::Rewrite]),
    variables: &[VariablePlace::guard("source", VariableForm::Name)],
    ..Descriptor::itself::<RealIp>()
};

const EXAMPLE: &str = r#"```yaml
listeners: ["127.0.0.1:9080"]
routes:
  - uri: /*
    plugins:
      real-ip:
        source: http_x_forwarded_for
        trusted_addresses: [127.0.0.0/8]     # the balancer in front
      ip-restriction: { blacklist: [203.0.113.7] }
    upstream: http://127.0.0.1:9000
```

```console
$ curl -i -H 'X-Forwarded-For: 203.0.113.7' http://127.0.0.1:9080/orders
HTTP/1.1 403 Forbidden
…
$ curl -H 'X-Forwarded-For: 203.0.113.8' http://127.0.0.1:9080/orders
…
    "x-real-ip": "203.0.113.8"
  }
}
```
"#;

/// Takes the client's address from a variable, such as a field that a proxy has set.
///
/// It runs first, so that address rules, limits and logs see that address. `realip_remote_addr` keeps the
/// address of the peer. In a global rule it covers requests without a route too.
#[derive(Deserialize, JsonSchema)]
struct RealIp {
    /// The variable with the address, e.g. `http_x_forwarded_for` or `arg_realip`; it may have a port.
    #[schemars(length(min = 1))]
    source: VarName,
    /// Peers that may say so; without it, all.
    #[schemars(length(min = 1))]
    #[schemars(extend("items" = {"type": "string", "description": "An address or a network."}))]
    trusted_addresses: Option<Networks>,
    /// For `X-Forwarded-For`: passes over trusted addresses from the right.
    #[schemars(extend("default" = false))]
    recursive: bool,
}

impl Configuration for RealIp {}

impl RealIp {
    fn trusts(&self, addr: Option<IpAddr>) -> bool {
        match (&self.trusted_addresses, addr) {
            (Some(trusted), Some(addr)) => trusted.contains(addr),
            (Some(_), None) => false,
            (None, _) => true,
        }
    }

    fn told(&self, ctx: &Context) -> Option<Vec<u8>> {
        if self.source == VarName::Http("x-forwarded-for".to_owned()) {
            let line = ctx.request.headers.get_all(HeaderId::XForwardedFor).last()?;
            return Some(self.chosen(line).to_vec());
        }
        match ctx.get(&self.source)? {
            VarValue::Text(text) => Some(text.into_owned()),
            VarValue::Bool(truth) => Some(truth.to_string().into_bytes()),
            VarValue::List(_) => None,
        }
    }

    /// The address in an `X-Forwarded-For`: the last one, or the last one that is not trusted.
    fn chosen<'l>(&self, line: &'l [u8]) -> &'l [u8] {
        let mut items = line.rsplit(|b| *b == b',').map(<[u8]>::trim_ascii);
        let Some(trusted) = self.trusted_addresses.as_ref().filter(|_| self.recursive) else {
            return items.next().unwrap_or_default();
        };
        let is_trusted = |item: &[u8]| parse(item).is_ok_and(|(addr, _)| trusted.contains(addr));
        let mut first = &b""[..];
        for item in items {
            first = item;
            if !is_trusted(item) {
                break;
            }
        }
        first
    }
}

/// Clients decide how often this happens.
fn complain(reason: &str) {
    static COMPLAINT: LogThrottle = LogThrottle::new();
    if let Some(left_out) = COMPLAINT.due() {
        tracing::warn!(left_out, "real-ip: {reason}");
    }
}

/// `1.2.3.4`, `1.2.3.4:80`, `[::1]:80`, `[::1]` or `::1`.
fn parse(text: &[u8]) -> Result<(IpAddr, Option<u16>), String> {
    let text = String::from_utf8_lossy(text);
    // A client's text: no line ends in the log, and no more than an address may have.
    let bad = || format!("bad address: {}", text.escape_debug().take(SHOWN_CHARS).collect::<String>());
    let (addr, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (addr, rest) = rest.split_once(']').ok_or_else(bad)?;
            match rest.strip_prefix(':') {
                None if rest.is_empty() => (addr, None),
                None => return Err(bad()),
                port => (addr, port),
            }
        }
        None => match text.split_once(':') {
            // More than one colon: an IPv6 address without a port.
            Some((_, rest)) if rest.contains(':') => (&*text, None),
            Some((addr, port)) => (addr, Some(port)),
            None => (&*text, None),
        },
    };
    let addr: IpAddr = addr.parse().map_err(|_| bad())?;
    let port = match port {
        None => None,
        Some(digits) => match digits.parse() {
            Ok(port) if port > 0 => Some(port),
            _ => {
                let shown: String = digits.escape_debug().take(SHOWN_CHARS).collect();
                return Err(format!("bad port: {shown}"));
            }
        },
    };
    Ok((addr, port))
}

impl Plugin for RealIp {
    fn rewrite(&self, ctx: &mut Context, _env: &Env<'_>) -> Step {
        if !self.trusts(ctx.client.addr) {
            return Step::Next;
        }
        match self.told(ctx).map(|told| parse(&told)) {
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
    use serde_json::{Value, json};

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
    fn what_a_client_says_is_one_short_line_of_the_log() {
        let reason = parse(&[&b"x\nERROR made up\x1b[0m"[..], &[b'y'; 9000]].concat()).unwrap_err();
        assert!(reason.starts_with("bad address: x\\nERROR made up\\u{1b}"), "{reason}");
        assert!(reason.len() < 100 && !reason.contains(['\n', '\x1b']), "{reason}");
        let reason = parse(b"1.2.3.4:1\n2").unwrap_err();
        assert_eq!(reason, "bad port: 1\\n2");
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
