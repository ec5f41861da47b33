//! The server URLs of an API.

use serde_json::Value;

use super::Part;

/// Maximum number of URLs of one list, with all values of their variables.
const MOST_URLS: usize = 64;

/// Maximum number of variables in one URL.
const MOST_VARIABLES: usize = 16;

/// Returns the URLs of a list of servers. A variable with a list of values is replaced by each of them, any other
/// variable by its default. Without servers the URL is `/`.
///
/// # Errors
/// Returns a sentence if a server has no URL, a variable has no value, or a limit is exceeded.
pub(super) fn urls(servers: Option<&Part<'_>>) -> Result<Vec<String>, String> {
    let mut found = Vec::new();
    for server in servers.into_iter().flat_map(Part::elements) {
        let url = server.text("url").ok_or_else(|| server.wrong("has no `url`"))?;
        if url.matches('{').count() > MOST_VARIABLES {
            return Err(server.wrong("has more than 16 variables"));
        }
        expand(&server, String::new(), url, &mut found)?;
    }
    if found.is_empty() {
        found.push("/".to_owned());
    }
    Ok(found)
}

fn expand(server: &Part<'_>, before: String, rest: &str, found: &mut Vec<String>) -> Result<(), String> {
    let Some((text, behind)) = rest.split_once('{') else {
        if found.len() >= MOST_URLS {
            return Err(server.wrong("is one of more than 64 servers"));
        }
        found.push(before + rest);
        return Ok(());
    };
    let (name, after) = behind.split_once('}').ok_or_else(|| server.wrong("has a `{` without a `}`"))?;
    let variable = server.member("variables").and_then(|all| all.member(name));
    let unknown = || server.wrong(&format!("has no value for the variable `{name}`"));
    let variable = variable.ok_or_else(unknown)?;
    let default = variable.value.get("default");
    let values = match variable.value.get("enum").and_then(Value::as_array) {
        Some(values) if !values.is_empty() => values.iter().collect(),
        _ => vec![default.ok_or_else(unknown)?],
    };
    for value in values {
        let value = value.as_str().ok_or_else(unknown)?;
        expand(server, format!("{before}{text}{value}"), after, found)?;
    }
    Ok(())
}

/// Returns the path of a server URL, without a slash at its end; empty for the root.
#[must_use]
pub fn base_path(url: &str) -> &str {
    let path = match url.split_once("://") {
        Some((_, rest)) => rest.find('/').map_or("", |at| &rest[at..]),
        None => url,
    };
    let end = path.find(['?', '#']).unwrap_or(path.len());
    path[..end].trim_end_matches('/')
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn servers() {
        let check = |servers: Value, expected: Result<&[&str], &str>| {
            let part = Part { pointer: "/servers".to_owned(), value: &servers };
            let found = urls(Some(&part));
            let expected = expected.map(|all| all.iter().map(|url| (*url).to_owned()).collect());
            assert_eq!(found, expected.map_err(str::to_owned), "{servers}");
        };
        check(json!([]), Ok(&["/"]));
        check(json!([{"url": "https://a/v1"}, {"url": "/v2"}]), Ok(&["https://a/v1", "/v2"]));
        let variables = json!([{"url": "https://{host}/{base}/x", "variables": {
            "host": {"default": "a", "enum": ["a", "b"]}, "base": {"default": "v1"},
        }}]);
        check(variables, Ok(&["https://a/v1/x", "https://b/v1/x"]));
        check(json!([{}]), Err("`/servers/0` has no `url`"));
        check(json!([{"url": "{a}"}]), Err("`/servers/0` has no value for the variable `a`"));
        check(json!([{"url": "{a"}]), Err("`/servers/0` has a `{` without a `}`"));
        let many: Vec<String> = (0..9).map(|n| n.to_string()).collect();
        let many = json!([{"url": "/{a}{b}", "variables": {"a": {"enum": many}, "b": {"enum": many}}}]);
        check(many, Err("`/servers/0` is one of more than 64 servers"));
    }

    #[test]
    fn bases() {
        for (url, expected) in [
            ("/", ""),
            ("", ""),
            ("/v1/", "/v1"),
            ("https://a.example", ""),
            ("https://a.example/v1?x", "/v1"),
            ("http://a.example:8080/v1/api/", "/v1/api"),
        ] {
            assert_eq!(base_path(url), expected, "{url}");
        }
    }
}
