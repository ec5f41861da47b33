//! `ip-restriction`: clients by address.

use std::net::IpAddr;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use sigma_plugin::{
    Configuration, Context, Descriptor, Env, Flow, FlowPlugin, FlowStep, Phase, PhaseSet, Plugin, Reply,
    Session, Step,
};
use sigma_schema::Problem;
use sigma_schema::plugins::PluginScope;

use crate::shared::refusal::{self, Refusal};
use sigma_plugin_kit::networks::Networks;

/// Allows or denies clients by their address.
pub(crate) static IP_RESTRICTION: Descriptor = Descriptor {
    name: "ip-restriction",
    priority: 3000,
    example: include_str!("example.md"),
    phases: PhaseSet::of(&[Phase::Access]),
    warnings: Some(warnings),
    flow: Some(Flow::itself::<IpRestriction>()),
    ..Descriptor::itself::<IpRestriction>()
};

/// Allows or denies clients by their address.
///
/// The address is the result of `real-ip`, else the address of the direct peer. An IPv4 address that a socket for
/// both families shows as IPv6 counts as IPv4. A client on a Unix socket has no address and matches no list.
#[derive(Deserialize, JsonSchema)]
#[schemars(extend("oneOf" = [{"required": ["whitelist"]}, {"required": ["blacklist"]}]))]
struct IpRestriction {
    /// The message of a refusal.
    #[schemars(length(min = 1, max = 1024), extend("default" = "Your IP address is not allowed"))]
    message: String,
    /// The status of a refusal.
    #[schemars(with = "i64", extend("enum" = [403, 404], "default" = 403))]
    response_code: u16,
    /// Permitted addresses and networks; all others are refused.
    #[schemars(length(min = 1), extend("items" = network_schema()))]
    whitelist: Option<Networks>,
    /// Refused addresses and networks.
    #[schemars(length(min = 1), extend("items" = network_schema()))]
    blacklist: Option<Networks>,
    #[serde(flatten)]
    refusal: Refusal,
}

impl Configuration for IpRestriction {}

/// Returns warnings about settings without effect. A session of a stream route is closed, and its status is
/// only logged.
fn warnings(scope: PluginScope, conf: &Value) -> Vec<Problem> {
    if scope != PluginScope::Stream {
        return refusal::warnings(scope, conf);
    }
    let fields = ["message", "rejected_action", "tarpit_ms", "tarpit_max"];
    let idle = |field: &&str| {
        let message = format!("`{field}` has no effect: a refused session gets no response");
        Problem::new(*field, "no_effect", message).hint("remove it")
    };
    fields.iter().filter(|field| conf.get(**field).is_some()).map(idle).collect()
}

fn network_schema() -> Value {
    const V4: &str = r"^([0-9]{1,2}|1[0-9][0-9]|2[0-4][0-9]|25[0-5])(\.([0-9]{1,2}|1[0-9][0-9]|2[0-4][0-9]|25[0-5])){3}/([12]?[0-9]|3[0-2])$";
    const V6: &str = r"^([a-fA-F0-9]{0,4}:){1,8}(:[a-fA-F0-9]{0,4}){0,8}([a-fA-F0-9]{0,4})?/([0-9]{1,2}|1[0-1][0-9]|12[0-8])$";
    json!({"anyOf": [
        {"title": "IPv4", "type": "string", "format": "ipv4"},
        {"title": "IPv4/CIDR", "type": "string", "pattern": V4},
        {"title": "IPv6", "type": "string", "format": "ipv6"},
        {"title": "IPv6/CIDR", "type": "string", "pattern": V6}
    ]})
}

impl IpRestriction {
    fn refuses(&self, addr: Option<IpAddr>) -> bool {
        let listed = |list: &Networks| addr.is_some_and(|addr| list.contains(addr));
        match (&self.whitelist, &self.blacklist) {
            (Some(list), _) => !listed(list),
            (None, Some(list)) => listed(list),
            // The schema requests one of them.
            (None, None) => true,
        }
    }
}

impl FlowPlugin for IpRestriction {
    fn preread(&self, session: &mut Session, _: &Env<'_>) -> FlowStep {
        match self.refuses(session.client.addr) {
            true => FlowStep::Close(self.response_code),
            false => FlowStep::Next,
        }
    }
}

impl Plugin for IpRestriction {
    fn access(&self, ctx: &mut Context, env: &Env<'_>) -> Step {
        if self.refuses(ctx.client.addr) {
            let reply = Reply::new(self.response_code).json(&json!({ "message": self.message }));
            return self.refusal.step(reply, env);
        }
        Step::Next
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Case, FlowCase, entry, flow_entry, refusal, summary, warned};

    #[test]
    fn addresses_pass_or_do_not() {
        let check = |conf: Value, addr: &str, expected: &str| {
            let entry = entry("ip-restriction", conf.clone()).unwrap();
            let mut case = Case::new("GET / HTTP/1.1\nHost: h");
            case.ctx.client.addr = (!addr.is_empty()).then(|| addr.parse().unwrap());
            let reply = case.run(&entry, Phase::Access);
            assert_eq!(summary(reply.as_ref()), expected, "{conf} {addr}");
        };
        const REFUSED: &str = r#"403 {"message":"Your IP address is not allowed"}"#;
        let white = || json!({"whitelist": ["127.0.0.1", "10.0.0.0/8", "2001:db8::/32", "::1"]});
        let black = || json!({"blacklist": ["127.0.0.1", "10.0.0.0/8", "2001:db8::/32", "::1"]});
        let in_list = ["127.0.0.1", "10.255.0.1", "2001:db8:0:0::9", "::1", "::ffff:10.0.0.1"];
        for addr in in_list {
            check(white(), addr, "passed");
            check(black(), addr, REFUSED);
        }
        for addr in ["127.0.0.2", "11.0.0.1", "2001:db9::1", "::2", ""] {
            check(white(), addr, REFUSED);
            check(black(), addr, "passed");
        }
        check(json!({"whitelist": ["0.0.0.0/0"]}), "::1", REFUSED);
        check(json!({"whitelist": ["::/0"]}), "127.0.0.1", REFUSED);
        let worded = json!({"blacklist": ["::/0"], "message": "no", "response_code": 404});
        check(worded, "::5", r#"404 {"message":"no"}"#);
    }

    #[test]
    fn sessions_begin_or_do_not() {
        let check = |conf: Value, addr: &str, expected: Option<u16>| {
            let plugin = flow_entry("ip-restriction", conf.clone()).unwrap();
            let mut session = Session::default();
            session.client.addr = addr.parse().ok();
            let status = match FlowCase::default().preread(&plugin, &mut session) {
                FlowStep::Close(status) => Some(status),
                _ => None,
            };
            assert_eq!(status, expected, "{conf} {addr}");
        };
        check(json!({"whitelist": ["10.0.0.0/8"]}), "10.1.1.1", None);
        check(json!({"whitelist": ["10.0.0.0/8"]}), "192.0.2.1", Some(403));
        // A peer without an address has an unknown location.
        check(json!({"whitelist": ["0.0.0.0/0", "::/0"]}), "", Some(403));
        check(json!({"blacklist": ["10.0.0.0/8"], "response_code": 404}), "::ffff:10.0.0.1", Some(404));
        let idle = json!({"blacklist": ["::1"], "rejected_action": "tarpit", "message": "no"});
        assert_eq!(warned("ip-restriction", PluginScope::Stream, &idle), ["message", "rejected_action"]);
    }

    #[test]
    fn bad_configurations_are_refused() {
        let check =
            |conf: Value, expected: &str| assert_eq!(refusal("ip-restriction", &conf), expected, "{conf}");
        check(json!({}), "value should match only one schema, but matches none");
        check(
            json!({"whitelist": ["::1"], "blacklist": ["::1"]}),
            "value should match only one schema, but matches both schemas 1 and 2",
        );
        check(json!({"whitelist": ["1:2:3:4:5:6:7:8:9/8"]}), "invalid ip address: 1:2:3:4:5:6:7:8:9/8");
        for refused in [json!([]), json!(["10.0.0.0/33"]), json!(["example.com"]), json!(["::/129"])] {
            assert_ne!(refusal("ip-restriction", &json!({"blacklist": refused})), "", "{refused}");
        }
        assert_ne!(refusal("ip-restriction", &json!({"blacklist": ["::1"], "response_code": 405})), "");
    }
}
