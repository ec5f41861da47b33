//! Rules for settings and ssls that order certificates.

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use serde_json::Value;

use super::Object;
use super::hosts::{is_dns_name, is_record_name, texts};
use crate::settings::public_keyring::DEFAULT_KEYRING;
use sigma_schema::problem::{Problem, element, join, member};

/// Default minimum and maximum pause between failed orders.
pub(crate) const RETRY_S: u32 = 300;
pub(crate) const RETRY_MAX_S: u32 = 86_400;

/// Default timeouts of an order, and of the visibility of its records.
pub(crate) const ORDER_TIMEOUT_S: u32 = 180;
pub(crate) const PROPAGATION_TIMEOUT_S: u32 = 120;

/// Maximum number of names in one certificate, as at Let's Encrypt.
const NAMES_MAX: usize = 100;

/// Returns the problems of a whole document; `root` is its long form.
pub(crate) fn of_document(root: &Object) -> Vec<Problem> {
    let mut found = Vec::new();
    let acme = root.get("acme").and_then(Value::as_object);
    if let Some(acme) = acme {
        of_settings(acme, &mut found);
    }
    let list = |name: &str| root.get(name).and_then(Value::as_array).into_iter().flatten().enumerate();
    let is_stored = root.contains_key("store") || root.contains_key("admin");
    for (index, listener) in list("listeners") {
        if listener["tls"]["auto"] != true {
            continue;
        }
        let place = member(&element("listeners", index), "tls");
        if is_stored {
            let message = "`auto` orders certificates for routes in the file, but the routes are in a store";
            let hint = "write `tls: true`, and put an ssl with `type: acme` into the store for each name";
            found.push(Problem::new(place, "conflict", message).hint(hint));
        } else if acme.is_none() {
            found.push(without_settings(place));
        }
    }
    for (index, ssl) in list("ssls") {
        // A derived ssl is reported at its listener.
        let is_derived = ssl.get("id").and_then(Value::as_str).is_some_and(|id| id.starts_with("auto-"));
        if ssl.get("type").and_then(Value::as_str) == Some("acme") && acme.is_none() && !is_derived {
            found.push(without_settings(member(&element("ssls", index), "type")));
        }
    }
    let proves_by_records = |value: &Value| value["challenge"] == "dns-01";
    let uses_records = acme.is_some_and(|acme| acme.get("challenge") == Some(&Value::from("dns-01")))
        || list("ssls").any(|(_, ssl)| ssl.get("acme").is_some_and(proves_by_records));
    if acme.is_some_and(|acme| acme.contains_key("dns")) && !uses_records && !is_stored {
        let message = "no certificate uses the challenge `dns-01`";
        let hint = "write `challenge: dns-01` here or in an ssl, or remove `dns`";
        found.push(Problem::new("acme.dns", "unused", message).hint(hint));
    }
    if let Some(on_demand) = acme.and_then(|acme| acme.get("on_demand")?.as_object()) {
        of_on_demand(on_demand, &mut found);
        let shows_others = |tls: &Value| match tls {
            Value::Object(tls) => tls.get("certificates").and_then(Value::as_array).is_none_or(Vec::is_empty),
            tls => !matches!(tls, Value::Null | Value::Bool(false)),
        };
        if !list("listeners").any(|(_, listener)| shows_others(&listener["tls"])) {
            let message = "`on_demand` needs a listener with `tls` and without `certificates`";
            let hint = "write `tls: true` at a listener, or remove `on_demand`";
            found.push(Problem::new("acme.on_demand", "unused", message).hint(hint));
        }
    }
    let is_shared = root.get("store").and_then(|store| store.get("kind")) == Some(&Value::from("etcd"));
    if let Some(acme) = acme {
        of_shared(root, acme, is_shared, &mut found);
    }
    found
}

/// Returns the problems of orders that gateways on one etcd share, or of such settings without an etcd.
fn of_shared(root: &Object, acme: &Object, is_shared: bool, found: &mut Vec<Problem>) {
    if !is_shared {
        if acme.contains_key("lease_s") {
            let message = "no other gateway can take over: the store is not an etcd";
            found.push(Problem::new("acme.lease_s", "unused", message).hint("remove it"));
        }
        return;
    }
    let keyring = root.get("data_encryption").and_then(|part| part.get("keyring")?.as_array());
    // The first key encrypts.
    let seals =
        keyring.and_then(|keys| keys.first()?.as_str()).is_some_and(|key| !DEFAULT_KEYRING.contains(&key));
    if !seals {
        let message = "private keys of ordered certificates would be readable in etcd";
        let hint = "write a key of your own as `data_encryption: {keyring: [...]}`, 16 or 32 characters that are secret, the same for all gateways";
        found.push(Problem::new("data_encryption.keyring", "acme", message).hint(hint));
    }
    if acme.contains_key("on_demand") {
        let message = "gateways that share an etcd order for ssls alone";
        let hint = "put an ssl with `type: acme` into the store for each name, or for a wildcard";
        found.push(Problem::new("acme.on_demand", "conflict", message).hint(hint));
    }
    if root.get("store").and_then(|store| store.get("access")) == Some(&Value::from("read_only")) {
        let message = "with `acme`, gateways share challenge responses through the store";
        let hint = "write `access: read_write`, or remove `acme`";
        found.push(Problem::new("store.access", "conflict", message).hint(hint));
    }
}

fn without_settings(place: String) -> Problem {
    let hint = "write `acme: {terms_agreed: true}`, see docs/certificates.md";
    Problem::new(place, "acme", "certificates cannot be ordered without the setting `acme`").hint(hint)
}

fn of_settings(acme: &Object, found: &mut Vec<Problem>) {
    let text = |key: &str| acme.get(key).and_then(Value::as_str);
    let mut problem = |field: &str, message: String, hint: &str| {
        found.push(Problem::new(join("acme", field), "acme", message).hint(hint));
    };
    if acme.get("terms_agreed") != Some(&Value::Bool(true)) {
        let message = "orders need your agreement to the authority's terms of service".to_owned();
        problem("terms_agreed", message, "read its terms of service, then write `terms_agreed: true`");
    }
    if let Some(directory) = text("directory")
        && !directory.strip_prefix("https://").is_some_and(|rest| !rest.is_empty() && !rest.contains('@'))
    {
        let message = format!("`{directory}` is not the address of a directory");
        problem("directory", message, "write the https://host/path that the authority publishes");
    }
    if let Some(email) = text("email") {
        let is_odd = |c: char| c.is_whitespace() || c.is_control() || matches!(c, ',' | '?' | '%' | ':');
        if !email.split_once('@').is_some_and(|(user, host)| !user.is_empty() && !host.is_empty())
            || email.contains(is_odd)
        {
            problem("email", format!("`{email}` is not an address"), "write it like ops@example.com");
        }
    }
    let key = acme.get("external_account").and_then(|account| account.get("hmac_key")?.as_str());
    if key.is_some_and(|key| URL_SAFE_NO_PAD.decode(key.trim_end_matches('=')).is_err()) {
        let hint = "copy it as the authority shows it: letters, digits, `-` and `_`";
        problem("external_account.hmac_key", "the key is not base64url".to_owned(), hint);
    }
    let number = |key: &str| acme.get(key).and_then(Value::as_u64);
    let (retry, most) =
        (number("retry_s").unwrap_or(RETRY_S.into()), number("retry_max_s").unwrap_or(RETRY_MAX_S.into()));
    if retry > most {
        let message = format!("`retry_s`, {retry} s, is above `retry_max_s`, {most} s");
        problem("retry_s", message, "raise `retry_max_s`");
    }
    let proves_by_records = text("challenge") == Some("dns-01");
    match acme.get("dns").and_then(Value::as_object) {
        Some(dns) => of_dns(dns, number("order_timeout_s").unwrap_or(ORDER_TIMEOUT_S.into()), found),
        None if proves_by_records => {
            let message = "names need the challenge `dns-01`, and `acme.dns` is not set".to_owned();
            problem(
                "challenge",
                message,
                "say in `acme.dns` how records are added, see docs/dns-challenge.md",
            );
        }
        None => {}
    }
}

/// Returns the problems of certificates on demand.
fn of_on_demand(on_demand: &Object, found: &mut Vec<Problem>) {
    let mut problem = |field: &str, message: String, hint: &str| {
        found.push(Problem::new(join("acme.on_demand", field), "acme", message).hint(hint));
    };
    let names = on_demand.get("names").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let ask = on_demand.get("ask").and_then(Value::as_str);
    if names.is_empty() && ask.is_none() {
        let message = "any client could cause orders for any name".to_owned();
        problem("names", message, "list the permitted names, or set `ask`");
    }
    for (index, name) in names.iter().enumerate() {
        let Some(name) = name.as_str() else { continue };
        let base = name.strip_prefix("*.").unwrap_or(name);
        if !is_dns_name(base) || !name.contains('.') {
            let hint = "write the name of a host, such as www.example.com, or *.example.com";
            problem(&element("names", index), format!("a certificate for `{name}` cannot be ordered"), hint);
        }
    }
    let is_address = |ask: &str| {
        let rest = ask.strip_prefix("https://").or_else(|| ask.strip_prefix("http://"));
        rest.is_some_and(|rest| !rest.is_empty() && !rest.contains(['@', '#', ' ']))
    };
    if ask.is_some_and(|ask| !is_address(ask)) {
        problem(
            "ask",
            "this is not the address of a service".to_owned(),
            "write http://host/path or https://host/path",
        );
    }
}

/// The ways to add records.
const DNS_MEANS: [&str; 6] = ["update", "hook", "cloudflare", "digitalocean", "ovh", "route53"];

/// The ways that are APIs of providers.
const PROVIDERS: [&str; 4] = ["cloudflare", "digitalocean", "ovh", "route53"];

/// Whether an API's address is https, or on this machine.
fn is_safe_endpoint(endpoint: &str) -> bool {
    let local = ["http://127.0.0.1:", "http://[::1]:"];
    endpoint.strip_prefix("https://").is_some_and(|rest| !rest.is_empty())
        || local.iter().any(|start| endpoint.starts_with(start))
}

/// Returns the problems of the DNS settings.
fn of_dns(dns: &Object, order_timeout_s: u64, found: &mut Vec<Problem>) {
    let mut problem = |field: &str, message: String, hint: &str| {
        found.push(Problem::new(join("acme.dns", field), "acme", message).hint(hint));
    };
    let mut means = DNS_MEANS.into_iter().filter(|means| dns.contains_key(*means));
    match (means.next(), means.next()) {
        (None, _) => {
            let message = "no way to add records is set".to_owned();
            problem(
                "update",
                message,
                "write one of update, hook, cloudflare, digitalocean, ovh and route53",
            );
        }
        (Some(first), Some(second)) => {
            let message = format!("`{first}` already adds the records");
            problem(second, message, "keep one of the two");
        }
        (Some(_), None) => {}
    }
    for provider in PROVIDERS {
        let endpoint = dns.get(provider).and_then(|provider| provider.get("endpoint")?.as_str());
        if let Some(endpoint) = endpoint.filter(|endpoint| !is_safe_endpoint(endpoint)) {
            let message = format!("`{endpoint}` is not https: the credentials would be sent in cleartext");
            problem(&join(provider, "endpoint"), message, "write the https://host/path");
        }
    }
    if let Some(update) = dns.get("update") {
        let text = |key: &str| update.get(key).and_then(Value::as_str);
        for field in ["zone", "key"] {
            if let Some(name) = text(field).filter(|name| !is_record_name(name)) {
                let hint = "write letters, digits, `-`, `_` and dots";
                problem(&join("update", field), format!("`{name}` is not a name"), hint);
            }
        }
        if text("secret").is_some_and(|secret| !STANDARD.decode(secret).is_ok_and(|key| !key.is_empty())) {
            let hint = "copy it as `tsig-keygen` prints it";
            problem("update.secret", "the key is not base64".to_owned(), hint);
        }
    }
    let program = dns.get("hook").and_then(|hook| hook.get("command")?.get(0)?.as_str());
    if let Some(program) = program.filter(|program| !program.starts_with('/')) {
        let hint = "write its absolute path, and each argument as a separate item; there is no shell";
        problem("hook.command[0]", format!("`{program}` is not the path of a program"), hint);
    }
    let propagation =
        dns.get("propagation_timeout_s").and_then(Value::as_u64).unwrap_or(PROPAGATION_TIMEOUT_S.into());
    if propagation >= order_timeout_s {
        let message =
            format!("`propagation` allows {propagation} s, more than the whole order: {order_timeout_s} s");
        problem("propagation_timeout_s", message, "raise `acme.order_timeout_s`");
    }
}

/// Returns the problems of one ssl.
pub(crate) fn of_ssl(ssl: &Object) -> Vec<Problem> {
    let is_acme = ssl.get("type").and_then(Value::as_str) == Some("acme");
    let mut found = Vec::new();
    let mut problem = |place: &str, message: String, hint: &str| {
        found.push(Problem::new(place, "acme", message).hint(hint));
    };
    if !is_acme {
        if ssl.contains_key("acme") {
            let message = "`acme` belongs to an ssl with `type: acme`".to_owned();
            problem("acme", message, "set the type, or remove it");
        }
        return found;
    }
    for name in ["certs", "keys"].into_iter().filter(|name| ssl.contains_key(*name)) {
        problem(name, format!("`{name}` has no effect in an ssl with `type: acme`"), "remove it");
    }
    if ssl.contains_key("cert") != ssl.contains_key("key") {
        let message = "`cert` and `key`, which serve until a certificate is ordered, belong together";
        problem("cert", message.to_owned(), "write both, or neither");
    }
    let ssl = Value::Object(ssl.clone());
    let names: Vec<String> = texts(&ssl, "sni", "snis").collect();
    if names.len() > NAMES_MAX {
        let message = format!("{} names are more than the {NAMES_MAX} of one certificate", names.len());
        problem("snis", message, "make several ssls");
    }
    // If it is unset, the challenge of the settings applies, which is checked at compilation.
    let challenge = ssl.get("acme").and_then(|own| own.get("challenge")?.as_str());
    let proves_wildcards =
        challenge.is_none_or(|challenge| ["dns-01", "dns-persist-01"].contains(&challenge));
    let can_be_ordered = |name: &str| match name.strip_prefix("*.") {
        Some(rest) => proves_wildcards && is_dns_name(rest),
        None => is_dns_name(name),
    };
    for name in names.iter().filter(|name| !can_be_ordered(name)) {
        let place = if ssl.get("sni").is_some() { "sni" } else { "snis" };
        let hint = match name.starts_with("*.") {
            true => "list the hosts, or use the challenge `dns-01`: a wildcard needs it",
            false => "write the name of a host, such as www.example.com",
        };
        problem(place, format!("a certificate for `{name}` cannot be ordered"), hint);
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn told(problems: &[Problem]) -> Vec<(&str, &str)> {
        problems.iter().map(|problem| (&*problem.pointer, &*problem.message)).collect()
    }

    #[test]
    fn settings_without_effect_are_refused() {
        let check = |root: Value, expected: &[(&str, &str)]| {
            let found = of_document(root.as_object().unwrap());
            assert_eq!(told(&found), expected, "{root}");
        };
        let nowhere = "certificates cannot be ordered without the setting `acme`";
        let auto = json!([{"address": ":1", "tls": {"auto": true}}]);
        let good = json!({"terms_agreed": true});
        check(json!({"acme": good, "listeners": auto}), &[]);
        check(json!({"acme": good, "admin": {}, "ssls": []}), &[]);
        check(
            json!({"listeners": auto, "ssls": [{"id": "auto-a", "type": "acme"}]}),
            &[("listeners[0].tls", nowhere)],
        );
        check(json!({"ssls": [{"id": "1"}, {"id": "2", "type": "acme"}]}), &[("ssls[1].type", nowhere)]);
        check(
            json!({"acme": good, "admin": {}, "listeners": auto}),
            &[(
                "listeners[0].tls",
                "`auto` orders certificates for routes in the file, but the routes are in a store",
            )],
        );
        let leased = json!({"terms_agreed": true, "lease_s": 9});
        let alone = "no other gateway can take over: the store is not an etcd";
        check(json!({"acme": leased, "admin": {}}), &[("acme.lease_s", alone)]);
        let own = json!({"keyring": ["0123456789abcdef", DEFAULT_KEYRING[0]]});
        check(json!({"acme": leased, "store": {"kind": "etcd"}, "data_encryption": own}), &[]);
        let open = "private keys of ordered certificates would be readable in etcd";
        for keyring in
            [json!({}), json!({"keyring": []}), json!({"keyring": [DEFAULT_KEYRING[1], "0123456789abcdef"]})]
        {
            check(
                json!({"acme": good, "store": {"kind": "etcd"}, "data_encryption": keyring}),
                &[("data_encryption.keyring", open)],
            );
        }
        check(
            json!({"acme": good, "store": {"kind": "etcd", "access": "read_only"}, "data_encryption": own}),
            &[("store.access", "with `acme`, gateways share challenge responses through the store")],
        );
        let field = |name: &str, value: Value, place: &str, message: &str| {
            let mut acme = good.clone();
            acme[name] = value;
            check(json!({"acme": acme}), &[(place, message)]);
        };
        let terms = "orders need your agreement to the authority's terms of service";
        field("terms_agreed", json!(false), "acme.terms_agreed", terms);
        check(json!({"acme": {}}), &[("acme.terms_agreed", terms)]);
        for odd in ["http://a", "https://", "a", "https://u@a"] {
            field(
                "directory",
                json!(odd),
                "acme.directory",
                &format!("`{odd}` is not the address of a directory"),
            );
        }
        for odd in ["a", "@a", "a@", "a@b c", "a@b,c@d", "a@b?to=c"] {
            field("email", json!(odd), "acme.email", &format!("`{odd}` is not an address"));
        }
        let account = json!({"key_id": "1", "hmac_key": "a+b"});
        field("external_account", account, "acme.external_account.hmac_key", "the key is not base64url");
        let long = "`retry_s`, 600 s, is above `retry_max_s`, 60 s";
        check(
            json!({"acme": {"terms_agreed": true, "retry_s": 600, "retry_max_s": 60}}),
            &[("acme.retry_s", long)],
        );
    }

    #[test]
    fn records_are_placed_in_one_way() {
        let check = |acme: Value, expected: &[(&str, &str)]| {
            let mut acme = acme;
            acme["terms_agreed"] = true.into();
            let root = json!({ "acme": acme, "admin": {} });
            assert_eq!(told(&of_document(root.as_object().unwrap())), expected, "{root}");
        };
        let update = json!({"server": "10.0.0.1", "key": "k.", "secret": "aGVsbG8="});
        let hook = json!({"command": ["/bin/true", "a b"]});
        check(json!({"challenge": "dns-01", "dns": {"update": update}}), &[]);
        check(json!({"dns": {"hook": hook}}), &[]);
        let whole = |ssls: Value| {
            let root = json!({"acme": {"terms_agreed": true, "dns": {"hook": hook}}, "ssls": ssls});
            of_document(root.as_object().unwrap())
        };
        assert_eq!(told(&whole(json!([]))), [("acme.dns", "no certificate uses the challenge `dns-01`")]);
        assert!(whole(json!([{"type": "acme", "acme": {"challenge": "dns-01"}}])).is_empty());
        let how = "names need the challenge `dns-01`, and `acme.dns` is not set";
        check(json!({"challenge": "dns-01"}), &[("acme.challenge", how)]);
        check(json!({"dns": {}}), &[("acme.dns.update", "no way to add records is set")]);
        let cloudflare = |endpoint: &str| json!({"cloudflare": {"api_token": "t", "endpoint": endpoint}});
        check(json!({"challenge": "dns-01", "dns": cloudflare("https://127.0.0.1:1/x")}), &[]);
        check(json!({"challenge": "dns-01", "dns": cloudflare("http://127.0.0.1:1/x")}), &[]);
        let clear = "`http://a.test` is not https: the credentials would be sent in cleartext";
        check(json!({"dns": cloudflare("http://a.test")}), &[("acme.dns.cloudflare.endpoint", clear)]);
        let twice = "`update` already adds the records";
        check(json!({"dns": {"update": update, "hook": hook}}), &[("acme.dns.hook", twice)]);
        for (field, odd, message) in [
            ("zone", "a b", "`a b` is not a name"),
            ("zone", "a..b", "`a..b` is not a name"),
            ("key", "", "`` is not a name"),
            ("secret", "a-b_", "the key is not base64"),
            ("secret", "aGVsbG8", "the key is not base64"),
        ] {
            let mut update = update.clone();
            update[field] = odd.into();
            check(json!({"dns": {"update": update}}), &[(&format!("acme.dns.update.{field}"), message)]);
        }
        check(
            json!({"dns": {"hook": {"command": ["hook.sh"]}}}),
            &[("acme.dns.hook.command[0]", "`hook.sh` is not the path of a program")],
        );
        check(
            json!({"order_timeout_s": 60, "dns": {"hook": hook}}),
            &[(
                "acme.dns.propagation_timeout_s",
                "`propagation` allows 120 s, more than the whole order: 60 s",
            )],
        );
    }

    #[test]
    fn names_on_demand_are_named() {
        let check = |on_demand: Value, expected: &[(&str, &str)]| {
            let root =
                json!({"acme": {"terms_agreed": true, "on_demand": on_demand}, "listeners": [{"tls": {}}]});
            assert_eq!(told(&of_document(root.as_object().unwrap())), expected, "{root}");
        };
        check(json!({"names": ["*.a.test", "b.test"]}), &[]);
        check(json!({"ask": "http://127.0.0.1:1/x?y=z"}), &[]);
        let any = "any client could cause orders for any name";
        check(json!({}), &[("acme.on_demand.names", any)]);
        check(json!({"names": []}), &[("acme.on_demand.names", any)]);
        for odd in ["*", "a", "*.*.test", "10.0.0.1", "a_b.test", "*."] {
            let message = format!("a certificate for `{odd}` cannot be ordered");
            check(json!({"names": [odd]}), &[("acme.on_demand.names[0]", &message)]);
        }
        for odd in ["ftp://a", "a", "http://", "http://u@a"] {
            // The address may contain a secret and is not shown.
            check(json!({"ask": odd}), &[("acme.on_demand.ask", "this is not the address of a service")]);
        }
        let own = json!({"keyring": ["0123456789abcdef"]});
        let acme = json!({"terms_agreed": true, "on_demand": {"names": ["a.test"]}});
        let own_alone = json!([{"tls": {"certificates": [{"cert": "a", "key": "b"}]}}, {"address": ":80"}]);
        let root = json!({"acme": acme, "listeners": own_alone});
        let unseen = "`on_demand` needs a listener with `tls` and without `certificates`";
        assert_eq!(told(&of_document(root.as_object().unwrap())), [("acme.on_demand", unseen)]);
        let tls = json!([{"tls": true}]);
        let root = json!({"acme": acme, "listeners": tls, "store": {"kind": "etcd"}, "data_encryption": own});
        let alone = "gateways that share an etcd order for ssls alone";
        assert_eq!(told(&of_document(root.as_object().unwrap())), [("acme.on_demand", alone)]);
    }

    #[test]
    fn lists_allow_their_names() {
        let of = |names: &[&str]| {
            let names = names.iter().map(|name| (*name).to_owned()).collect();
            crate::settings::acme::OnDemand { names, ..Default::default() }
        };
        let listed = of(&["*.a.test", "B.test"]);
        for (name, expected) in [
            ("x.a.test", true),
            ("b.test", true),
            ("a.test", false),
            ("x.y.a.test", false),
            ("c.b.test", false),
            ("xa.test", false),
            ("x_y.a.test", false),
            (".a.test", false),
            ("*.a.test", false),
        ] {
            assert_eq!(listed.allows(name), expected, "{name}");
        }
        for odd in ["localhost", "10.0.0.1", "::1", "a..b", ""] {
            assert!(!of(&[]).allows(odd), "{odd}");
        }
        assert!(of(&[]).allows("any.test"));
    }

    #[test]
    fn names_of_ordered_certificates_are_checked() {
        let check = |ssl: Value, expected: &[(&str, &str)]| {
            assert_eq!(told(&of_ssl(ssl.as_object().unwrap())), expected, "{ssl}");
        };
        check(json!({"type": "acme", "snis": ["a.test", "B.test."]}), &[]);
        check(json!({"type": "acme", "sni": "a.test", "cert": "c", "key": "k", "acme": {}}), &[]);
        check(json!({"sni": "*"}), &[]);
        check(json!({"sni": "a", "acme": {}}), &[("acme", "`acme` belongs to an ssl with `type: acme`")]);
        for odd in ["*", "*.*.test", "a.*.test", "*.127.0.0.1", "127.0.0.1", "a_b"] {
            let message = format!("a certificate for `{odd}` cannot be ordered");
            check(json!({"type": "acme", "sni": odd}), &[("sni", &message)]);
        }
        check(json!({"type": "acme", "snis": ["*.a.test", "a.test"]}), &[]);
        for challenge in ["dns-01", "dns-persist-01"] {
            check(json!({"type": "acme", "sni": "*.a.test", "acme": {"challenge": challenge}}), &[]);
        }
        check(
            json!({"type": "acme", "sni": "*.a.test", "acme": {"challenge": "tls-alpn-01"}}),
            &[("sni", "a certificate for `*.a.test` cannot be ordered")],
        );
        let alone = "`cert` and `key`, which serve until a certificate is ordered, belong together";
        check(json!({"type": "acme", "sni": "a.test", "cert": "c"}), &[("cert", alone)]);
        check(
            json!({"type": "acme", "sni": "a.test", "certs": []}),
            &[("certs", "`certs` has no effect in an ssl with `type: acme`")],
        );
        let many: Vec<String> = (0..101).map(|n| format!("{n}.a.test")).collect();
        check(
            json!({"type": "acme", "snis": many}),
            &[("snis", "101 names are more than the 100 of one certificate")],
        );
    }
}
