//! HashiCorp Vault: `GET <uri>/v1/<prefix>/<path>` with a token; the last part of a key names the member of the
//! response. Both versions of the KV engine are read.

use reqwest::Method;
use serde_json::Value;
use sigma_config::resources::Secret;
use sigma_schema::Confidential;

use super::client::{Request, Verify, address, below, unexpected};
use super::{Failure, Shared, text_of};

pub(super) async fn fetch(shared: &Shared, access: &Secret, key: &str) -> Result<String, Failure> {
    let Some((path, name)) = key.rsplit_once('/') else {
        return Err(Failure::Refused("the key needs a path and a name: `<path>/<name>`".to_owned()));
    };
    let uri = shared.plain(access, "uri", access.uri.as_deref())?;
    let prefix = shared.plain(access, "prefix", access.prefix.as_deref())?;
    let token = shared.plain(access, "token", access.token.as_ref().map(Confidential::reveal))?;
    let namespace = match access.namespace.as_deref() {
        Some(namespace) => Some(shared.plain(access, "namespace", Some(namespace))?),
        None => None,
    };
    let prefix = prefix.trim_matches('/');
    let url = below(address(&uri)?, ["v1"].into_iter().chain(prefix.split('/')).chain(path.split('/')))?;
    let mut headers = vec![("x-vault-token", token.as_str())];
    headers.extend(namespace.as_deref().map(|namespace| ("x-vault-namespace", namespace)));
    let request = Request {
        method: Method::GET,
        url,
        headers: &headers,
        body: String::new(),
        verify: Verify::Certificate,
    };
    let answer = shared.client.ask(request).await?;
    match answer.status {
        200 => member(&answer.body, name),
        404 => Err(Failure::Refused(format!("Vault has nothing at `{prefix}/{path}`"))),
        403 => Err(Failure::Refused(format!("Vault does not allow the token of `{}` to read it", access.id))),
        status => Err(unexpected("Vault", status)),
    }
}

/// Version 1 of the KV engine answers `.data.<name>`, version 2 `.data.data.<name>`.
fn member(body: &[u8], name: &str) -> Result<String, Failure> {
    let Ok(answer) = serde_json::from_slice::<Value>(body) else {
        return Err(Failure::Refused("the response of Vault is not JSON".to_owned()));
    };
    let data = &answer["data"];
    let versioned = if data["metadata"].is_object() { data["data"].get(name) } else { None };
    match versioned.or_else(|| data.get(name)) {
        Some(value) => text_of(value)
            .ok_or_else(|| Failure::Refused(format!("`{name}` in Vault is not a string or a number"))),
        None => Err(Failure::Refused(format!("Vault's secret has no member `{name}`"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_of_both_versions() {
        let check = |body: &str, expected: Option<&str>| {
            assert_eq!(member(body.as_bytes(), "k").ok().as_deref(), expected, "{body}");
        };
        check(r#"{"data": {"k": "v"}}"#, Some("v"));
        check(r#"{"data": {"k": 1}}"#, Some("1"));
        check(r#"{"data": {"data": {"k": "v"}, "metadata": {"version": 2}}}"#, Some("v"));
        check(r#"{"data": {"data": {"k": "v"}}}"#, None);
        check(r#"{"data": {"k": {"a": 1}}}"#, None);
        check(r#"{"data": null}"#, None);
        check("[]", None);
        check("<html>", None);
    }
}
