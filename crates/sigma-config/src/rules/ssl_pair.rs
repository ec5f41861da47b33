//! Rules for the certificate and key of an ssl: written in it, or in files.

use serde_json::Value;

use super::{Object, word};
use crate::resources::reference::is_reference;
use sigma_schema::problem::Problem;

/// The fields for PEM texts, each with its field for a file name.
const FIELDS: [(&str, &str); 2] = [("cert", "cert_file"), ("key", "key_file")];

/// A longer text is not a file name.
const FILE_NAME_MAX: usize = 255;

/// Refuses fields with file names. The author of an ssl in a store or the Admin API must not be able to read files of
/// this machine.
pub(crate) fn without_files(ssl: &Object) -> Result<(), String> {
    if let Some((text, file)) = FIELDS.iter().find(|(_, file)| ssl.contains_key(*file)) {
        return Err(format!(
            "`{file}` is for a configuration file only; write the PEM text into `{text}`, or a reference such as $env://NAME"
        ));
    }
    let lists = ssl.get("client").and_then(|client| client.get("crl")?.get("files"));
    if lists.is_some_and(|lists| lists.as_array().is_none_or(|lists| !lists.is_empty())) {
        return Err("`client.crl.files` is for a configuration file only; write where to fetch the lists into `client.crl.urls`".to_owned());
    }
    Ok(())
}

/// Rewords schema problems for the author of a file: it names the missing field instead of the clause that did not
/// match.
pub(crate) fn instead_of(mut schema: Vec<Problem>, ssl: &Object) -> Vec<Problem> {
    let mut own = file_names(ssl);
    schema.retain(|problem| !own.iter().any(|name| name.pointer == problem.pointer));
    let mut pair = pair(ssl);
    // A misspelt field may be the missing one.
    if schema.iter().any(|problem| problem.code == "unknown_key") {
        pair.retain(|problem| problem.code != "missing");
    }
    if !pair.is_empty() {
        let is_clause = |problem: &Problem| {
            let is_there = |own: &Problem| own.pointer == problem.pointer;
            let is_told = problem.message.contains("clause did not match")
                || problem.message.ends_with(" exclude each other")
                || problem.message.ends_with(" is required")
                || problem.message.ends_with(" are required");
            is_told && (problem.pointer.is_empty() || pair.iter().any(is_there))
        };
        schema.retain(|problem| !is_clause(problem));
    }
    own.extend(pair);
    own.extend(schema);
    own
}

/// Reports file names in the fields for PEM text.
fn file_names(ssl: &Object) -> Vec<Problem> {
    let looks_like_one = |text: &str| {
        !text.is_empty()
            && text.len() <= FILE_NAME_MAX
            && !is_reference(text)
            && !text.contains(['\n', ' '])
            && text.contains(['.', '/'])
    };
    let named = |(field, file): &(&str, &str)| {
        word(ssl, field).filter(|text| looks_like_one(text))?;
        let message = format!("`{field}` takes PEM text; this looks like the name of a file");
        Some(Problem::new(*field, "certificate", message).hint(format!("write it as `{file}`")))
    };
    FIELDS.iter().filter_map(named).collect()
}

/// Reports missing fields, and fields that exclude each other.
fn pair(ssl: &Object) -> Vec<Problem> {
    let has = |field: &str| ssl.contains_key(field);
    let kind = ssl.get("type").and_then(Value::as_str).unwrap_or("server");
    let mut found = Vec::new();
    let mut add = |place: &str, code, message: &str, hint: &str| {
        found.push(Problem::new(place, code, message).hint(hint));
    };
    if kind != "client" && !has("sni") && !has("snis") {
        add("", "missing", "`sni` or `snis` is required", "add the server name");
    }
    if has("cert_file") || has("key_file") {
        let (message, hint) = match (kind, has("cert_file")) {
            ("acme", _) => ("with `type: acme` the gateway orders the certificate itself", "remove it"),
            (_, false) => ("`key_file` needs `cert_file`", "add `cert_file`"),
            _ if has("cert") || has("key") => {
                ("`cert_file` excludes `cert` and `key`", "keep either the files or the texts")
            }
            _ => return found,
        };
        add(if has("cert_file") { "cert_file" } else { "key_file" }, "conflict", message, hint);
        return found;
    }
    const HINT: &str = "write them as PEM, or name files with `cert_file` and `key_file`";
    match (has("cert"), has("key")) {
        _ if kind == "acme" => {}
        (false, false) => add("", "missing", "`cert` and `key` are required", HINT),
        (false, true) => add("", "missing", "`cert` is required: the certificate of `key`", HINT),
        (true, false) => add("", "missing", "`key` is required: the private key of `cert`", HINT),
        (true, true) => {}
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::resources::kind::Kind;
    use crate::settings::UnknownFields;
    use crate::stored::{self, problems};
    use sigma_schema::plugins::NoPlugins;

    #[test]
    fn a_file_learns_which_field_is_missing() {
        let check = |ssl: Value, expected: &[&str]| {
            let found = problems(Kind::Ssl, &ssl, &NoPlugins, UnknownFields::Refuse);
            let found: Vec<String> = found
                .iter()
                .map(|problem| {
                    let place = if problem.pointer.is_empty() { "-" } else { &problem.pointer };
                    format!("{place}: {}", problem.message)
                })
                .collect();
            assert_eq!(found, expected, "{ssl}");
        };
        check(json!({"sni": "a.test"}), &["-: `cert` and `key` are required"]);
        check(json!({"type": "client"}), &["-: `cert` and `key` are required"]);
        check(json!({"cert_file": "a.pem"}), &["-: `sni` or `snis` is required"]);
        check(json!({"type": "acme"}), &["-: `sni` or `snis` is required"]);
        check(
            json!({"sni": "a.test", "snis": ["b.test"], "cert_file": "a"}),
            &["snis: `sni` and `snis` exclude each other"],
        );
        check(json!({"sni": "a.test", "cert_file": "a.pem", "key_file": "a.key"}), &[]);
        check(json!({"type": "client", "cert_file": "both.pem"}), &[]);
        check(json!({"sni": "a.test", "key_file": "a.key"}), &["key_file: `key_file` needs `cert_file`"]);
        check(json!({"sni": "a.test", "cert_file": ""}), &["cert_file: is empty"]);
        check(
            json!({"type": "acme", "sni": "a.test", "cert_file": "a.pem"}),
            &["cert_file: with `type: acme` the gateway orders the certificate itself"],
        );
        let pem = "$env://CERT".to_owned() + &"x".repeat(128);
        check(
            json!({"sni": "a.test", "cert_file": "a.pem", "cert": pem, "key": pem}),
            &["cert_file: `cert_file` excludes `cert` and `key`"],
        );
        check(json!({"sni": "a.test", "cert": pem}), &["-: `key` is required: the private key of `cert`"]);
        check(
            json!({"sni": "a.test", "cert": "shop.crt", "key": "shop.key"}),
            &[
                "cert: `cert` takes PEM text; this looks like the name of a file",
                "key: `key` takes PEM text; this looks like the name of a file",
            ],
        );
    }

    /// An author with write access to a store must not read files of the gateway's machine.
    #[test]
    fn a_store_cannot_name_files() {
        for field in ["cert_file", "key_file", "client.crl.files"] {
            for value in [json!("/etc/shadow"), json!(["/etc/shadow"]), json!(""), json!(null), json!({})] {
                for unknown in [UnknownFields::Refuse, UnknownFields::Warn] {
                    let ssl = match field {
                        "client.crl.files" => {
                            let client = json!({"ca": "", "crl": {"files": value}});
                            json!({"id": "1", "sni": "a.test", "client": client})
                        }
                        field => json!({"id": "1", "sni": "a.test", field: value}),
                    };
                    let expected = format!("`{field}` is for a configuration file only");
                    let refusal = stored::check(Kind::Ssl, Some("1"), &ssl, &NoPlugins, unknown).unwrap_err();
                    assert!(refusal.contains(&expected) && !refusal.contains("shadow"), "{refusal}");
                    let key = crate::resources::kind::ResourceKey::new(Kind::Ssl, "1");
                    let refusal = stored::read(&key, &ssl, &NoPlugins, unknown).unwrap_err();
                    assert!(refusal.contains(&expected), "{refusal}");
                }
            }
        }
    }
}
