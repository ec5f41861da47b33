//! Sample expressions: a fetch with converters, such as `req.hdr(host),lower,field(1,:)`.

use super::super::words::header_variable;
use super::expr::Subject;
use super::value::{Call, Kind, Sample};

/// Splits an expression at its commas.
pub(super) fn calls(text: &str) -> Result<Vec<Call>, String> {
    split(text, ',')
        .into_iter()
        .map(|part| match part.split_once('(') {
            Some((name, rest)) => {
                let inner = rest.strip_suffix(')').ok_or_else(|| format!("`{part}` has an open bracket."))?;
                let args = if inner.is_empty() { Vec::new() } else { split(inner, ',') };
                Ok(Call {
                    name: name.trim().to_owned(),
                    args: args.iter().map(|arg| argument(arg)).collect(),
                })
            }
            None => Ok(Call { name: part.trim().to_owned(), args: Vec::new() }),
        })
        .collect()
}

/// Splits at a character outside of brackets and quotes; a backslash takes its meaning away.
fn split(text: &str, at: char) -> Vec<String> {
    let (mut parts, mut part, mut depth) = (Vec::new(), String::new(), 0usize);
    let mut chars = text.chars();
    let mut quote = None;
    while let Some(char) = chars.next() {
        match char {
            '\\' => {
                part.push(char);
                part.extend(chars.next());
                continue;
            }
            '"' | '\'' if quote.is_none() => quote = Some(char),
            char if Some(char) == quote => quote = None,
            '(' if quote.is_none() => depth += 1,
            ')' if quote.is_none() => depth = depth.saturating_sub(1),
            char if char == at && depth == 0 && quote.is_none() => {
                parts.push(std::mem::take(&mut part));
                continue;
            }
            _ => {}
        }
        part.push(char);
    }
    parts.push(part);
    parts
}

/// An argument without its quotes and escapes of separators.
fn argument(text: &str) -> String {
    let text = text.trim();
    let text = text.strip_prefix(['"', '\'']).and_then(|it| it.strip_suffix(['"', '\''])).unwrap_or(text);
    text.replace("\\,", ",").replace("\\ ", " ")
}

/// The beginning of the sentence about a variable without a value.
pub(super) const UNSET: &str = "No earlier line sets the variable";

/// Values that `set-var` has named, by their names.
pub(super) type Variables = std::collections::HashMap<String, Sample>;

/// Reads an expression.
///
/// # Errors
/// Returns a sentence if a fetch or converter has no counterpart.
pub(super) fn read(text: &str, variables: &Variables) -> Result<Sample, String> {
    let calls = calls(text)?;
    let (first, converters) = calls.split_first().ok_or("The expression is empty.")?;
    let mut sample = fetch(first, variables)?;
    for converter in converters {
        sample = super::convert::apply(sample, converter)?;
    }
    Ok(sample)
}

fn fetch(call: &Call, variables: &Variables) -> Result<Sample, String> {
    let arg = |at: usize| call.args.get(at).map(String::as_str);
    let name = call.name.as_str();
    let request = |name: Option<&str>| -> Result<Sample, String> {
        let name = name.ok_or("A header has no name.")?;
        let kind = match name.to_ascii_lowercase().as_str() {
            "host" => Kind::Host,
            // Texts that may have commas, but are no lists.
            "user-agent" | "cookie" | "referer" | "authorization" | "date" => Kind::Text,
            _ => Kind::List,
        };
        Ok(Sample::of_variable(&header_variable(name)?, kind))
    };
    Ok(match name {
        "hdr" | "req.hdr" | "req.fhdr" | "hdr_ip" | "req.hdr_ip" | "hdr_val" | "req.hdr_val" | "shdr" => {
            let mut sample = request(arg(0))?;
            // The value is the last one of a list, unless the whole field is requested.
            if name != "req.fhdr" && sample.kind != Kind::Host {
                sample.lua = format!("last({})", sample.lua);
                sample.text = None;
            }
            if name.ends_with("_ip") {
                sample.kind = Kind::Address;
            } else if name.ends_with("_val") {
                sample.kind = Kind::Number;
            }
            sample
        }
        "res.hdr" | "res.fhdr" | "shdr_val" | "res.hdr_val" => {
            let name = arg(0).ok_or("A header has no name.")?;
            Sample::lua(format!("header({})", super::lua::text(name)), Kind::List)
        }
        "res.hdr_cnt" => {
            let name = arg(0).ok_or("A header has no name.")?;
            Sample::lua(format!("(header({}) and 1 or 0)", super::lua::text(name)), Kind::Number)
        }
        "hdr_cnt" | "req.hdr_cnt" => {
            let variable = header_variable(arg(0).unwrap_or_default())?;
            let mut sample = Sample::lua(format!("count(ngx.var.{variable})"), Kind::Number);
            sample.kind = Kind::Special(Subject::Other);
            sample.variable = Some(variable);
            sample
        }
        "status" => Sample::lua("ngx.status".to_owned(), Kind::Number),
        "path" => Sample::of_variable("uri", Kind::Path),
        "pathq" | "url" | "capture.req.uri" => Sample::of_variable("request_uri", Kind::Text),
        "query" => Sample::of_variable("args", Kind::Text),
        "base" => Sample {
            variable: None,
            text: Some("${http_host}${uri}".to_owned()),
            lua: "((ngx.var.http_host or \"\") .. ngx.var.uri)".to_owned(),
            lowered: false,
            kind: Kind::Text,
        },
        "method" | "capture.req.method" => Sample::of_variable("request_method", Kind::Method),
        "src" => Sample::of_variable("remote_addr", Kind::Address),
        "dst" => Sample::of_variable("server_addr", Kind::Address),
        "src_port" => Sample::of_variable("remote_port", Kind::Number),
        "dst_port" | "fc_dst_port" => Sample::of_variable("server_port", Kind::Number),
        "req.cook" | "cook" | "cookie" => {
            Sample::of_variable(&format!("cookie_{}", word(arg(0))?), Kind::Text)
        }
        "url_param" | "urlp" => {
            let mut sample = Sample::of_variable(&format!("arg_{}", word(arg(0))?), Kind::Text);
            sample.lua = format!("argument({})", super::lua::text(arg(0).unwrap_or_default()));
            sample
        }
        _ => return further(call, variables),
    })
}

fn further(call: &Call, variables: &Variables) -> Result<Sample, String> {
    let arg = |at: usize| call.args.get(at).map(String::as_str);
    let name = call.name.as_str();
    let boolean = |value: &str| Sample::lua(value.to_owned(), Kind::Bool(None));
    Ok(match name {
        "ssl_fc" => Sample::boolean("scheme", "==", "https".into(), "(ngx.var.scheme == \"https\")"),
        "ssl_c_used" | "ssl_fc_has_crt" => Sample::boolean(
            "ssl_client_serial",
            "~=",
            serde_json::Value::Null,
            "(ngx.var.ssl_client_serial ~= nil)",
        ),
        "ssl_fc_sni" => Sample::of_variable("ssl_server_name", Kind::Text),
        "req.ssl_sni" | "req_ssl_sni" => Sample::of_variable("ssl_preread_server_name", Kind::Text),
        "ssl_fc_protocol" => Sample::of_variable("ssl_protocol", Kind::Text),
        "ssl_fc_cipher" => Sample::of_variable("ssl_cipher", Kind::Text),
        "ssl_fc_alpn" => Sample::of_variable("ssl_alpn_protocol", Kind::Text),
        "ssl_c_s_dn" if call.args.is_empty() => Sample::of_variable("ssl_client_s_dn", Kind::Text),
        "ssl_c_i_dn" if call.args.is_empty() => Sample::of_variable("ssl_client_i_dn", Kind::Text),
        "ssl_c_serial" => Sample::of_variable("ssl_client_serial", Kind::Text),
        "req.ver" => Sample::of_variable("server_protocol", Kind::Text),
        "unique-id" => Sample::of_variable("request_id", Kind::Text),
        "hostname" => Sample::of_variable("hostname", Kind::Text),
        "req.body_size" | "req.len" => Sample::of_variable("content_length", Kind::Number),
        "req.hdr_names" => return Err("The list of field names has no variable.".to_owned()),
        "str" => Sample::literal(arg(0).unwrap_or_default()),
        "int" => Sample { kind: Kind::Number, ..Sample::literal(arg(0).unwrap_or_default()) },
        "bool" => boolean(if matches!(arg(0), Some("1" | "true" | "on")) { "true" } else { "false" }),
        "always_true" => boolean("true"),
        "always_false" => boolean("false"),
        "env" => return Err("An environment variable is read at the start: write its value.".to_owned()),
        "var" => {
            let name = arg(0).unwrap_or_default();
            variables.get(name).cloned().ok_or_else(|| format!("{UNSET} `{name}`."))?
        }
        "date" => Sample::lua("tostring(ngx.time())".to_owned(), Kind::Number),
        "rand" => {
            let of = arg(0).and_then(|text| text.parse().ok()).unwrap_or(1 << 32);
            Sample::special(Subject::Random { below: 0, of })
        }
        "nbsrv" => Sample::special(Subject::NoServers(arg(0).unwrap_or_default().to_owned())),
        "http_auth" | "http_auth_group" => {
            Sample::special(Subject::Credentials(arg(0).unwrap_or_default().to_owned()))
        }
        "ssl_hello_type" | "req.ssl_hello_type" | "req_ssl_hello_type" => {
            Sample::of_variable("hello", Kind::Number)
        }
        _ => return counter(call).ok_or_else(|| format!("The fetch `{name}` has no counterpart.")),
    })
}

/// Counters of stick tables: `sc_http_req_rate(0)`, `sc0_http_req_rate`, `src_http_req_rate(table)`.
fn counter(call: &Call) -> Option<Sample> {
    let name = call.name.as_str();
    let known =
        ["http_req_rate", "conn_rate", "conn_cur", "http_err_rate", "http_req_cnt", "conn_cnt", "sess_rate"];
    let (index, counter, table) = if let Some(rest) = name.strip_prefix("sc_") {
        (call.args.first()?.parse().ok()?, rest, call.args.get(1))
    } else if let Some(rest) = name.strip_prefix("src_") {
        // The source itself is the key, without tracking.
        (u8::MAX, rest, call.args.first())
    } else {
        let rest = name.strip_prefix("sc")?;
        let (digit, rest) = rest.split_once('_')?;
        (digit.parse().ok()?, rest, call.args.first())
    };
    let subject = Subject::Above { counter: counter.to_owned(), index, table: table.cloned(), number: 0 };
    known.contains(&counter).then(|| Sample::special(subject))
}

/// A name that can be part of a variable's name.
fn word(name: Option<&str>) -> Result<&str, String> {
    let name = name.ok_or("A fetch has no name.")?;
    let is_word = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    if is_word { Ok(name) } else { Err(format!("`{name}` is not the name of a variable.")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_have_calls() {
        let calls = calls("req.hdr(host),regsub(\"a(b),c\",x\\,y),lower").expect("calls");
        assert_eq!(calls.len(), 3);
        assert_eq!(calls[1].args, ["a(b),c", "x,y"]);
        let sample = read("hdr(Host),lower", &Variables::new()).expect("a sample");
        assert_eq!((sample.variable.as_deref(), sample.lowered), (Some("http_host"), true));
        assert!(read("lua.x", &Variables::new()).is_err());
    }
}
