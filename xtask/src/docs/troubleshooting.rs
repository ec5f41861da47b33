//! The page on troubleshooting: the table of reasons, by status and by word.

use std::collections::BTreeMap;
use std::fmt::Write;

use sigma_http::{EarlyRefusal, FaultKind, ReasonRow, Side, fault};

/// The text before the tables.
const BEGINNING: &str = r#"# Troubleshooting

## Find the reason of an error response

Sigma names the reason of every error response that it makes itself. The same word is in these places:

```
{"error_msg":"502 Bad Gateway","reason":"connection_refused","detail":"the node refused the connection or cannot be reached"}
```

- `reason` of the line that each response with 5xx has in the [error log](logging.md#error-log);
- `reason` and `detail` of the JSON body. [`show_reason`](configuration.md) can hide them, and `profile: edge` does. The body of a 404 without a route never has them;
- the variable `$fault` at the end of the default line of the [access log](logging.md), if `access_log.path` is set;
- the label `kind` of the metrics `sigma_faults_total` and `sigma_refusals_total`.

`sigma explain REASON` prints meaning and remedy of a word:

```console
$ sigma explain connection_refused
connection_refused (status 502)
  The node refused the connection or cannot be reached.
  Remedy: Start the service; check address, port and firewall.
```

A response of a node has no reason and no line in the error log. Set `access_log.path`: the line has `fault=-` and the status of the node.

| to see | use |
|---|---|
| the route of a request, with routes in a file | `sigma routes -c sigma.yaml METHOD HOST PATH` |
| the route and the plugins of a request, with routes in a store | [`sigma ctl explain METHOD URL`](admin-api.md#explain-a-request) |
| the nodes, and why one is out | `sigma ctl upstreams`, with the key of the Admin API or a [`control`](control-api.md) in the file |
| single exchanges of a running gateway | [`sigma ctl tap`](tapping.md) |

"#;

/// The text behind the row of plugins.
const PLUGINS: &str = "
Bodies of plugins have no `reason`, since clients depend on their form. A 5xx of a plugin without a body of its own has it: `{\"error_msg\":\"503 Service Unavailable\",\"reason\":\"plugin:limit-req\"}`.

| status | plugins | see |
|---|---|---|
| 401 | authentication | the page of the plugin; credentials are not logged |
| 403 | authorization, restrictions | [authorization](policies.md), [block clients](block-clients.md) |
| 429, 503 | `limit-count`, `limit-req`, `limit-conn`: 503 is the default of `rejected_code` | [plugins](plugins/README.md) |
| 503 | a login plugin whose provider does not respond | the [error log](logging.md#error-log) |
";

/// The text behind the tables.
const END: &str = "
## No access lines, no log lines

- Access lines are missing: see `sigma_access_lines_dropped_total`, then the disk.
- Lines of the error log are missing: see `sigma_error_lines_dropped_total`, then the process that reads the log. Lines of \
one reason are limited; `left_out` counts those in between.
";

/// The page, in Markdown.
pub(super) fn page() -> String {
    let mut out = BEGINNING.to_owned();
    by_status(&mut out);
    let is_client = |kind: &FaultKind| kind.row().status.is_some_and(|status| status < 500);
    let faults = |belongs: &dyn Fn(&FaultKind) -> bool| {
        FaultKind::ALL.iter().filter(|kind| belongs(kind)).map(|kind| kind.row()).collect::<Vec<_>>()
    };
    let is_node = |kind: &FaultKind| kind.side() == Side::Upstream;
    table(&mut out, "Client errors", faults(&is_client));
    table(&mut out, "Errors of nodes", faults(&|kind| !is_client(kind) && is_node(kind)));
    table(&mut out, "Errors of the gateway", faults(&|kind| !is_client(kind) && !is_node(kind)));
    table(&mut out, "Responses of plugins", vec![&fault::PLUGIN]);
    out.push_str(PLUGINS);
    table(
        &mut out,
        "Refusals before a request",
        EarlyRefusal::ALL.iter().map(|kind| kind.row()).collect::<Vec<_>>(),
    );
    out.push_str(END);
    out
}

/// The words of each status.
fn by_status(out: &mut String) {
    let mut words: BTreeMap<u16, Vec<String>> = BTreeMap::new();
    for reason in ReasonRow::all() {
        let Some(status) = reason.status else { continue };
        let (words, word) = (words.entry(status).or_default(), format!("`{}`", reason.word));
        if !words.contains(&word) {
            words.push(word);
        }
    }
    out.push_str("## By status\n\n| status | reasons |\n|---|---|\n");
    for (status, words) in words {
        let _ = writeln!(out, "| {status} | {} |", words.join(", "));
    }
    let plugins = "| any | `plugin`: the name of the plugin follows, such as `plugin:limit-count` |\n";
    out.push_str(plugins);
}

/// A heading with a row for each reason, sorted by status.
fn table(out: &mut String, heading: &str, mut rows: Vec<&ReasonRow>) {
    rows.sort_by_key(|reason| reason.status);
    let _ = writeln!(out, "\n## {heading}\n\n| reason | status | meaning | remedy |\n|---|---|---|---|");
    for ReasonRow { word, status, meaning, remedy } in rows {
        let status = status.map_or("–".to_owned(), |status| status.to_string());
        let _ = writeln!(out, "| `{word}` | {status} | {meaning} | {remedy} |");
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    /// The text of all product sources below a folder, but for the file of the table.
    fn sources(folder: &Path, text: &mut String) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() && !matches!(&*name, "tests" | "target") {
                sources(&path, text);
            } else if name.ends_with(".rs") && !matches!(&*name, "fault.rs" | "tests.rs" | "refusals.rs") {
                let source = fs::read_to_string(&path).unwrap();
                text.push_str(source.split("#[cfg(test)]\nmod tests").next().unwrap());
            }
        }
    }

    /// The data plane makes each fault and refusal of the table. That each of them has a row is a matter of types.
    #[test]
    fn every_row_has_a_maker() {
        let mut text = String::new();
        sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates"), &mut text);
        let words = FaultKind::ALL.iter().map(|kind| (format!("FaultKind::{kind:?}"), kind.row().word));
        let words = words
            .chain(EarlyRefusal::ALL.iter().map(|kind| (format!("EarlyRefusal::{kind:?}"), kind.row().word)));
        for (maker, word) in words {
            let is_made = text.match_indices(&maker).any(|(at, _)| {
                !text[at + maker.len()..].starts_with(|next: char| next.is_ascii_alphanumeric())
            });
            assert!(is_made, "nothing makes {word}: remove its row");
        }
    }

    #[test]
    fn every_word_is_on_the_page() {
        let page = page();
        for reason in ReasonRow::all() {
            assert!(page.contains(&format!("| `{}` |", reason.word)), "{}", reason.word);
        }
        for status in [400, 404, 408, 499, 500, 502, 503, 504] {
            assert!(page.contains(&format!("\n| {status} | `")), "{status}");
        }
    }
}
