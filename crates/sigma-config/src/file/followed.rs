//! Restrictions on followed documents (`config_sources`). Their author is often not the operator of the machine: they
//! have resources and no settings, no environment variables, and name no files that a store may not name.

use serde_json::Value;

use crate::check::{id_of, kind_of};
use crate::resources::SECTIONS;
use crate::resources::kind::Kind;
use crate::rules::ssl_pair;
use crate::settings::Settings;
use crate::stored::AllowedFiles;
use sigma_schema::document::Document;
use sigma_schema::plugins::PluginSchemas;
use sigma_schema::problem::{Problem, element, member};

/// Returns the problem of a configuration file that has resources although they come from followed documents.
pub(crate) fn own_resources(document: &Document) -> Option<Problem> {
    let root = document.value.as_object().filter(|root| root.contains_key("config_sources"))?;
    let has_items =
        |section: &&str| root.get(*section).and_then(Value::as_array).is_some_and(|l| !l.is_empty());
    let section = SECTIONS.into_iter().find(|section| has_items(section))?;
    let message = format!("the file has `{section}`, but `config_sources` is set, so resources belong there");
    let hint = "move them to a followed document, or remove `config_sources`";
    Some(document.problem(section, "two_sources", message).hint(hint))
}

/// Returns the problems of a followed document that can be seen in it alone.
pub(crate) fn problems(document: &Document) -> Vec<Problem> {
    let mut found = Vec::new();
    let Value::Object(members) = &document.value else {
        let message = "the document is empty, or not a mapping";
        let hint = "write `routes: []` to remove all resources";
        return vec![Problem::new("", "type", message).at(Some(1)).hint(hint)];
    };
    for key in members.keys().filter(|key| !SECTIONS.contains(&key.as_str())) {
        let place = member("", key);
        let message =
            format!("`{key}` is not a section of resources; a followed document has resources only");
        let problem = document.problem(&place, "conflict", message);
        found.push(problem.hint("write settings into the configuration file of the gateway"));
    }
    if members.is_empty() {
        let message = "the document has no section of resources";
        let problem = Problem::new("", "missing", message).at(Some(1));
        found.push(problem.hint("write `routes: []` to remove all resources"));
    }
    variables(document, &document.value, "", &mut found);
    found
}

/// Refuses environment variables: the author of a document could have their values sent elsewhere.
fn variables(document: &Document, value: &Value, pointer: &str, found: &mut Vec<Problem>) {
    match value {
        Value::String(text) => found.extend(variable(document, text, pointer)),
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                variables(document, item, &element(pointer, index), found);
            }
        }
        Value::Object(members) => {
            for (key, value) in members {
                let place = member(pointer, key);
                found.extend(variable(document, key, &place));
                variables(document, value, &place, found);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn variable(document: &Document, text: &str, pointer: &str) -> Option<Problem> {
    if !text.contains("${{") {
        return None;
    }
    let message = "a followed document cannot read environment variables";
    let problem = document.problem(pointer, "environment", message);
    Some(problem.hint("write the value, or a reference such as $secret://… to a secret manager"))
}

/// Returns the problems of resources that name files which a store may not name.
pub(crate) fn forbidden_files(
    document: &Document,
    settings: &Settings,
    plugins: &dyn PluginSchemas,
) -> Vec<Problem> {
    let allowed = AllowedFiles::of(settings);
    let mut found = Vec::new();
    for section in SECTIONS {
        let items = document.value.get(section).and_then(Value::as_array).into_iter().flatten();
        for (index, item) in items.enumerate() {
            let kind = kind_of(section, item);
            let of_ssl = match (kind, item) {
                (Kind::Ssl, Value::Object(ssl)) => ssl_pair::without_files(ssl),
                _ => Ok(()),
            };
            let checked = of_ssl.and_then(|()| allowed.check(kind, id_of(item).as_deref(), item, plugins));
            if let Err(message) = checked {
                found.push(document.problem(&element(section, index), "file", message));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use crate::file::include::Included;
    use crate::{ParseOptions, parse};
    use sigma_schema::Problem;

    const SETTINGS: &str = "workers: 1\nconfig_sources: { urls: [{ url: \"https://h/c.yaml\" }] }\n";
    const ROUTES: &str = "routes:\n- uri: /a\n  upstream: http://127.0.0.1:1\n";

    fn parsed(file: &str, followed: &[(&str, &str)]) -> Result<crate::Checked, Vec<String>> {
        let followed: Vec<Included<'_>> =
            followed.iter().map(|(name, text)| Included { name, text }).collect();
        let options = ParseOptions {
            env: &|_| Some("hush".to_owned()),
            included: Some(&[]),
            followed: &followed,
            ..ParseOptions::default()
        };
        parse(file, &options).map_err(|problems| problems.iter().map(Problem::to_string).collect())
    }

    #[test]
    fn resources_come_from_followed_documents() {
        let json = r#"{"routes": [{"uri": "/b", "upstream": {"nodes": {"127.0.0.1:1": 1}}}]}"#;
        let checked = parsed(SETTINGS, &[("one", ROUTES), ("two", json)]).expect("a configuration");
        let uris: Vec<&str> =
            checked.config.resources.routes.iter().filter_map(|route| route.uri.as_deref()).collect();
        assert_eq!(uris, ["/a", "/b"]);
        // Before the first document the configuration has no resources, and a document may remove all.
        for followed in [&[][..], &[("one", "routes: []\n")]] {
            let checked = parsed(SETTINGS, followed).expect("a configuration");
            assert!(checked.config.resources.routes.is_empty());
        }
    }

    #[test]
    fn restricted_documents_are_refused_with_their_place() {
        let check = |file: &str, document: &str, expected: &str| {
            let found = parsed(file, &[("centre", document)]).expect_err("a problem");
            assert!(found.iter().any(|found| found.starts_with(expected)), "{expected}: {found:#?}");
        };
        check(
            SETTINGS,
            &format!("{ROUTES}listeners: []\n"),
            "centre: line 4: listeners: `listeners` is not a section",
        );
        check(
            SETTINGS,
            "include: [a.yaml]\nroutes: []\n",
            "centre: line 1: include: `include` is not a section",
        );
        check(
            SETTINGS,
            "config_sources: {}\nroutes: []\n",
            "centre: line 1: config_sources: `config_sources` is not",
        );
        for empty in ["", "   \n", "# nothing\n", "- a\n", "7\n"] {
            check(SETTINGS, empty, "centre: line 1: the document is empty, or not a mapping");
        }
        check(SETTINGS, "{}", "centre: line 1: the document has no section");
        let variable = "routes:\n- uri: /a\n  upstream: \"http://${{HOST}}:1\"\n";
        check(
            SETTINGS,
            variable,
            "centre: line 3: routes[0].upstream: a followed document cannot read environment",
        );
        let ssl = "ssls:\n- { sni: a.test, cert_file: /etc/a.pem, key_file: /etc/a.key }\n";
        check(SETTINGS, ssl, "centre: line 2: ssls[0]: `cert_file` is for a configuration file only");
        check(
            SETTINGS,
            "routes:\n- uri: ~(\n  upstream: http://127.0.0.1:1\n",
            "centre: line 2: routes[0].uri",
        );
        let own = format!("{SETTINGS}{ROUTES}");
        let found = parsed(&own, &[]).expect_err("a problem");
        assert!(found[0].contains("`config_sources` is set, so resources belong there"), "{found:?}");
    }
}
