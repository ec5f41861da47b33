//! The fields that a configuration reads tokens from and sends them in.

use serde_json::Value;
use sigma_plugin::OwnedField;
use sigma_plugin::credentials::Credential;
use sigma_plugin::owned::texts;

/// The fields of tokens, the client's and the node's.
pub(super) fn credentials(conf: &Value) -> Vec<Credential> {
    let ways = ["header", "client_credentials", "token_exchange", "token_relay"].into_iter();
    let ways = ways.filter_map(|name| conf.get(name));
    let names =
        ways.flat_map(|way| ["name", "header", "from"].into_iter().flat_map(|member| texts(way, member)));
    names.chain(["X-Amz-Security-Token"]).map(Credential::field).collect()
}

/// The fields that the node gets by a configuration.
pub(super) fn owned_fields(conf: &Value) -> Vec<OwnedField> {
    const AUTHORIZATION: &str = "Authorization";
    let way = |name: &str| conf.get(name).filter(|way| !way.is_null());
    let text =
        |way: &Value, name: &str| way.get(name).and_then(Value::as_str).unwrap_or(AUTHORIZATION).to_owned();
    let mut fields = vec![OwnedField::shared(AUTHORIZATION)];
    let named = ["header", "client_credentials", "token_exchange", "token_relay"].into_iter();
    for (kind, way) in named.filter_map(|name| Some((name, way(name)?))) {
        let field = text(way, if kind == "header" { "name" } else { "header" });
        // Others read `Authorization`, and the client's token may come in the field itself.
        let is_read =
            [AUTHORIZATION, &text(way, "from")].iter().any(|name| name.eq_ignore_ascii_case(&field));
        fields.push(if is_read { OwnedField::shared(field) } else { OwnedField::judged(field) });
    }
    if way("aws_sigv4").is_some() {
        let names = ["X-Amz-Date", "X-Amz-Content-Sha256", "X-Amz-Security-Token"];
        fields.extend(names.map(OwnedField::shared));
    }
    if way("message_signature").is_some() {
        fields.extend(["Content-Digest", "Signature-Input", "Signature"].map(OwnedField::shared));
    }
    fields
}
