//! `ip-restriction`: clients by address.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};
use sigma_config::cidr::{Cidr, CidrSet};
use sigma_plugin::{Context, Descriptor, Env, Phase, PhaseSet, Plugin, Step};

/// Allows or denies clients by their address.
pub(crate) static IP_RESTRICTION: Descriptor = Descriptor {
    name: "ip-restriction",
    priority: 3000,
    doc: "Allows or denies clients by their address.\n\n\
        The address is the one that `real-ip` found, else that of the direct peer. An IPv4 address that \
        a socket for both families shows as IPv6 counts as IPv4. A client on a Unix socket has no \
        address and is on no list.",
    example: EXAMPLE,
    phases: PhaseSet::of(&[Phase::Access]),
    schema,
    check: Some(check),
    build: |build| Ok(Arc::new(build.config::<IpRestriction>()?)),
    ..Descriptor::BASE
};

const EXAMPLE: &str = r#"```yaml
listeners: ["127.0.0.1:9080"]
routes:
  - uri: /*
    plugins:
      ip-restriction: { whitelist: [10.0.0.0/8] }
    upstream: http://127.0.0.1:9000
```

```console
$ curl -i http://127.0.0.1:9080/orders
HTTP/1.1 403 Forbidden
…
{"message":"Your IP address is not allowed"}
```
"#;

fn schema() -> Value {
    const V4: &str = r"^([0-9]{1,2}|1[0-9][0-9]|2[0-4][0-9]|25[0-5])(\.([0-9]{1,2}|1[0-9][0-9]|2[0-4][0-9]|25[0-5])){3}/([12]?[0-9]|3[0-2])$";
    const V6: &str = r"^([a-fA-F0-9]{0,4}:){1,8}(:[a-fA-F0-9]{0,4}){0,8}([a-fA-F0-9]{0,4})?/([0-9]{1,2}|1[0-1][0-9]|12[0-8])$";
    let list = |description: &str| {
        json!({
            "type": "array",
            "minItems": 1,
            "items": {
                "anyOf": [
                    {"title": "IPv4", "type": "string", "format": "ipv4"},
                    {"title": "IPv4/CIDR", "type": "string", "pattern": V4},
                    {"title": "IPv6", "type": "string", "format": "ipv6"},
                    {"title": "IPv6/CIDR", "type": "string", "pattern": V6}
                ]
            },
            "description": description
        })
    };
    json!({
        "type": "object",
        "properties": {
            "message": {
                "type": "string",
                "minLength": 1,
                "maxLength": 1024,
                "default": "Your IP address is not allowed",
                "description": "The message of a refusal."
            },
            "response_code": {
                "type": "integer",
                "enum": [403, 404],
                "default": 403,
                "description": "The status of a refusal."
            },
            "whitelist": list("Addresses and networks that alone may pass."),
            "blacklist": list("Addresses and networks that may not pass.")
        },
        "oneOf": [{"required": ["whitelist"]}, {"required": ["blacklist"]}]
    })
}

/// What has the form of an address and is none.
fn check(conf: &Value) -> Result<(), String> {
    let lists = ["whitelist", "blacklist"].into_iter().filter_map(|name| conf.get(name)?.as_array());
    for text in lists.flatten().filter_map(Value::as_str) {
        text.parse::<Cidr>().map_err(|_| format!("invalid ip address: {text}"))?;
    }
    Ok(())
}

#[derive(Deserialize)]
struct IpRestriction {
    message: String,
    response_code: u16,
    #[serde(flatten)]
    list: List,
}

/// Exactly one of the two; a configuration without either restricts nobody, and is none.
#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum List {
    Whitelist(CidrSet),
    Blacklist(CidrSet),
}

impl Plugin for IpRestriction {
    fn access(&self, ctx: &mut Context, _: &Env<'_>) -> Step {
        let listed = |list: &CidrSet| ctx.client.addr.is_some_and(|addr| list.contains(addr));
        let refused = match &self.list {
            List::Whitelist(list) => !listed(list),
            List::Blacklist(list) => listed(list),
        };
        if refused {
            return Step::json(self.response_code, &json!({ "message": self.message }));
        }
        Step::Next
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Case, entry, refusal, summary};

    #[test]
    fn addresses_pass_or_do_not() {
        let check = |conf: Value, addr: &str, expected: &str| {
            let entry = entry("ip-restriction", conf.clone()).unwrap();
            let mut case = Case::new("GET / HTTP/1.1\nHost: h");
            case.cx.client.addr = (!addr.is_empty()).then(|| addr.parse().unwrap());
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
