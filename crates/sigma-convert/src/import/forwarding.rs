//! Trust in forwarding fields: sources that read them take the word of every peer. Converted files take the word of peers
//! in private networks, where proxies are.

use serde_json::{Value, json};

use super::Format;
use super::build;
use super::decision::Plan;
use super::report::{Report, Verdict};
use super::source::{Input, SourceLine};

/// Variables of the fields that the gateway replaces for peers without trust.
const VARIABLES: [&str; 3] = ["http_x_forwarded_proto", "http_x_forwarded_host", "http_x_forwarded_port"];

/// Loopback and private networks (RFC 1918, RFC 4193, RFC 6598). Peers on the Internet are no proxies: trust would also
/// lift `untrusted_fields` and `connections_per_address` for them.
const PRIVATE: [&str; 7] =
    ["127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "::1/128", "fc00::/7"];

/// Lets peers in private networks set forwarding fields where the source reads them and names no proxies: behind a proxy
/// that ends TLS, a redirect by `X-Forwarded-Proto` would have no end otherwise.
pub(super) fn trust(format: Format, input: &Input<'_>, plan: &mut Plan, report: &mut Report) {
    let reads_all = matches!(format, Format::Nginx | Format::Haproxy | Format::Caddy | Format::Spring);
    if !reads_all || plan.settings.contains_key("trusted_addresses") || !is_read(plan) {
        return;
    }
    plan.settings.insert("trusted_addresses".to_owned(), json!(PRIVATE));
    let text = "The original reads X-Forwarded-Proto, -Host and -Port of every peer. Here only peers in private networks may \
        set them: list your proxies in `trusted_addresses`. A request without such a field has the gateway's own value.";
    let (place, source) = place(input);
    report.add(place, source, Verdict::Differs, text);
    report.remarks.sort_by_key(|remark| remark.place);
}

fn is_read(plan: &Plan) -> bool {
    let names = |text: &str| VARIABLES.iter().any(|name| text.contains(name));
    let in_settings = plan.settings.values().any(|value| names(&Value::to_string(value)));
    in_settings || plan.decisions.iter().any(|decision| names(&build::texts(decision)))
}

/// The first line that names such a field.
fn place<'i>(input: &'i Input<'_>) -> (SourceLine, &'i str) {
    for (file, source) in (0u16..).zip(input.files) {
        for (line, text) in (1u32..).zip(source.text.lines()) {
            let lower = text.to_ascii_lowercase().replace('_', "-");
            if ["proto", "host", "port"].iter().any(|end| lower.contains(&format!("x-forwarded-{end}"))) {
                return (SourceLine { file, line }, text);
            }
        }
    }
    (SourceLine::default(), "")
}

#[cfg(test)]
mod tests {
    use super::super::source::{MemoryFiles, SourceFile};
    use super::super::{Format, import};
    use super::*;

    #[test]
    fn sources_that_read_forwarding_fields_trust_their_peers() {
        let trusted = |format: Format, text: &str| {
            let files = [SourceFile { name: "a".to_owned(), text: text.to_owned() }];
            let input = Input { files: &files, access: &MemoryFiles::default() };
            import(format, &input).expect("a configuration").document["trusted_addresses"].clone()
        };
        let all = json!(PRIVATE);
        let server = |line: &str| {
            format!(
                "http {{ {line} server {{ listen 80; if ($http_x_forwarded_proto = http) {{ return 301 https://a; }} location / {{ return 200 x; }} }} }}"
            )
        };
        assert_eq!(trusted(Format::Nginx, &server("")), all);
        assert_eq!(
            trusted(Format::Nginx, &server("set_real_ip_from 10.0.0.0/8; real_ip_header X-Forwarded-For;")),
            json!(["10.0.0.0/8"])
        );
        assert_eq!(
            trusted(Format::Nginx, "http { server { listen 80; location / { return 200 x; } } }"),
            Value::Null
        );
        let frontend = "frontend f\n mode http\n bind :80\n http-request redirect scheme https unless { hdr(x-forwarded-proto) https }\n default_backend b\nbackend b\n mode http\n server s 10.0.0.1:80\n";
        assert_eq!(trusted(Format::Haproxy, frontend), all);
    }
}
