//! `forwarded-fields`: data of the client for the node.

use std::net::IpAddr;

use schemars::JsonSchema;
use serde::Deserialize;
use sigma_http::HeaderId;
use sigma_plugin::{Configuration, Context, Descriptor, Env, OwnedField, Phase, PhaseSet, Plugin, Step};

/// The plugin.
pub(crate) static FORWARDED_FIELDS: Descriptor = Descriptor {
    name: "forwarded-fields",
    priority: 1007,
    example: include_str!("example.md"),
    phases: PhaseSet::of(&[Phase::Rewrite]),
    owned_fields: Some(|_| vec![OwnedField::shared("Forwarded")]),
    ..Descriptor::itself::<ForwardedFields>()
};

/// Selects the forwarding fields for the node: `X-Forwarded-…`, `X-Real-IP`, `Forwarded`.
///
/// Sigma's own. For a disabled field the node gets the client's value, or no field.
#[derive(Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
struct ForwardedFields {
    /// Whether the client's address is appended to `X-Forwarded-For`.
    #[schemars(extend("default" = true))]
    x_forwarded_for: bool,
    /// Whether `X-Real-IP` is set to the client's address.
    #[schemars(extend("default" = true))]
    x_real_ip: bool,
    /// Whether an element with the client's address, scheme and host is appended to `Forwarded` (RFC 7239).
    #[schemars(extend("default" = false))]
    forwarded: bool,
}

impl Configuration for ForwardedFields {}

impl Plugin for ForwardedFields {
    fn rewrite(&self, ctx: &mut Context, _env: &Env<'_>) -> Step {
        let fields = [(self.x_forwarded_for, HeaderId::XForwardedFor), (self.x_real_ip, HeaderId::XRealIp)];
        ctx.untouched.extend(fields.into_iter().filter(|(told, _)| !told).map(|(_, id)| id));
        if self.forwarded {
            forward(ctx);
        }
        Step::Next
    }
}

/// Appends the element of this gateway to `Forwarded`.
fn forward(ctx: &mut Context) {
    let client = match ctx.client.addr {
        Some(IpAddr::V4(addr)) => addr.to_string(),
        Some(IpAddr::V6(addr)) => format!("\"[{addr}]\""),
        None => "unknown".to_owned(),
    };
    let scheme = if ctx.client.tls.is_some() { "https" } else { "http" };
    let host = String::from_utf8_lossy(ctx.request.authority()).replace(['"', '\\'], "");
    let element = format!("for={client};proto={scheme};host=\"{host}\"");
    let fields = ctx.request.headers.iter().filter(|(name, _)| name.eq_ignore_ascii_case(b"forwarded"));
    let mut elements: Vec<Vec<u8>> = fields.map(|(_, value)| value.to_vec()).collect();
    elements.push(element.into_bytes());
    ctx.request.headers.replace("Forwarded", &elements.join(&b", "[..]));
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{Case, entry};

    #[test]
    fn disabled_fields_stay_untouched() {
        let plugin = entry("forwarded-fields", json!({"x_real_ip": false})).unwrap();
        let mut case = Case::new("GET / HTTP/1.1\nHost: h");
        assert!(case.run(&plugin, Phase::Rewrite).is_none());
        assert_eq!(case.ctx.untouched, [HeaderId::XRealIp]);
        assert_eq!(case.sent("Forwarded"), None);
    }

    #[test]
    fn forwarded_has_an_element_for_each_proxy() {
        let plugin = entry("forwarded-fields", json!({"forwarded": true})).unwrap();
        let check = |fields: &str, addr: &str, expected: &str| {
            let mut case = Case::new(&format!("GET / HTTP/1.1\nHost: shop.test:81\n{fields}"));
            case.ctx.client.addr = addr.parse().ok();
            assert!(case.run(&plugin, Phase::Rewrite).is_none());
            assert_eq!(case.sent("Forwarded").as_deref(), Some(expected), "{fields}");
        };
        check("", "1.2.3.4", "for=1.2.3.4;proto=http;host=\"shop.test:81\"");
        check("", "2001:db8::1", "for=\"[2001:db8::1]\";proto=http;host=\"shop.test:81\"");
        check(
            "Forwarded: for=a\nforwarded: for=b",
            "",
            "for=a, for=b, for=unknown;proto=http;host=\"shop.test:81\"",
        );
    }
}
