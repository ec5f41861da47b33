//! `sigma ctl`: the Admin API from a shell.

mod certificates;
mod client;
mod document;
mod explain;
mod history;
mod identity;
mod members;
mod orders;
mod output;
mod purge;
mod stress;
mod tap;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, anyhow, bail};
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use client::{Client, Method};
use document::Sent;
use identity::Identity;
use output::Form;

/// Collections whose resources the gateway can give an id.
const MAKES_IDS: [&str; 6] = ["routes", "services", "upstreams", "ssls", "protos", "stream_routes"];
/// The options that all commands have, apart from their own in the help.
const GATEWAY: &str = "Gateway and output";
/// Exit status of `sigma ctl diff` when there are differences; 1 and 2 stand for failures.
const DIFFERENT: u8 = 3;

/// Read and change the resources of running gateways
#[derive(Debug, Args)]
#[command(
    after_help = "Exit status: 0 done; 1 refused, or the gateway cannot be reached, details on stderr; 2 wrong usage; 3 `diff` found differences, `certificates` an expired one, or `explain` no route.\n\
KIND is a collection of the Admin API: routes, services, upstreams, ssls, consumers, consumers/NAME/credentials, consumer_groups, plugin_configs, global_rules, plugin_metadata, protos, stream_routes, secrets/MANAGER.\n\
FILE is YAML or JSON; `-` is standard input."
)]
pub(crate) struct Ctl {
    /// The URL of the Admin API [env: SIGMA_ADMIN; default: http://127.0.0.1:9180]
    #[arg(long, value_name = "URL", global = true, help_heading = GATEWAY)]
    admin: Option<String>,
    /// The key of the Admin API. Other users of this machine can see it; prefer the environment or --key-file [env: SIGMA_ADMIN_KEY]
    #[arg(long, value_name = "KEY", global = true, help_heading = GATEWAY, conflicts_with = "key_file")]
    key: Option<String>,
    /// The file with the key, such as the admin.key next to the store
    #[arg(long, value_name = "FILE", global = true, help_heading = GATEWAY)]
    key_file: Option<PathBuf>,
    #[command(flatten)]
    identity: Identity,
    /// The format of the output
    #[arg(short = 'o', long = "output", value_name = "FORM", global = true, help_heading = GATEWAY)]
    output: Option<Form>,
    #[command(subcommand)]
    command: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Show one resource
    Get {
        /// Its collection
        kind: String,
        /// Its id
        id: String,
    },
    /// Show a collection
    List {
        /// The collection
        kind: String,
        /// Only resources whose name matches this regular expression
        #[arg(long, value_name = "REGEX")]
        name: Option<String>,
        /// Only resources with a path that matches this regular expression
        #[arg(long, value_name = "REGEX")]
        uri: Option<String>,
        /// Only resources with this label
        #[arg(long, value_name = "LABEL")]
        label: Option<String>,
    },
    /// Create or replace a resource
    Put {
        /// Its collection
        kind: String,
        /// Its id. Without it, the `id` of the file, or an id that the gateway generates
        id: Option<String>,
        #[command(flatten)]
        change: Change,
    },
    /// Change a part of a resource
    Patch {
        /// Its collection
        kind: String,
        /// Its id
        id: String,
        #[command(flatten)]
        change: Change,
    },
    /// Delete a resource
    Delete {
        /// Its collection
        kind: String,
        /// Its id
        id: String,
        /// Delete it even if another resource uses it
        #[arg(long)]
        force: bool,
        /// Check only, without deleting it
        #[arg(long)]
        dry_run: bool,
    },
    /// Replace the whole configuration with a file's content, in one transaction
    Apply {
        #[command(flatten)]
        change: Change,
    },
    /// Show the changes that `apply` would make, or the differences between two versions of the history
    #[command(group = clap::ArgGroup::new("what").required(true).args(["file", "versions"]))]
    Diff {
        /// The configuration
        #[arg(short = 'f', long = "file", value_name = "FILE")]
        file: Option<PathBuf>,
        /// Two versions, as `history` lists them
        #[arg(value_name = "VERSION", num_args = 2)]
        versions: Vec<u64>,
        #[command(flatten)]
        past: history::Past,
    },
    /// List the versions of the configuration with their authors and times, or show the changes of one version
    #[command(
        after_help = "In the list + is created, ~ changed and - deleted. A version is an entry of this gateway's history. The revision is the store's own counter, which each write increases; the ETag of a resource is the revision of its last write."
    )]
    History {
        /// The version to show. Without it, versions are listed
        #[arg(value_name = "VERSION")]
        version: Option<u64>,
        /// The most versions to list
        #[arg(long, value_name = "NUMBER", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=500))]
        limit: u64,
        /// Only versions before this one
        #[arg(long, value_name = "VERSION")]
        before: Option<u64>,
        #[command(flatten)]
        past: history::Past,
    },
    /// List the gateways of the store: name, listeners and revision of each
    Members(members::Members),
    /// Purge stored responses from the caches of all gateways of the store
    Purge(purge::Purge),
    /// Show how a gateway would handle a request: route, plugins, upstream and nodes. Nothing is sent
    Explain(explain::Explain),
    /// Show requests and responses of a running gateway as they end, with heads and times. Secrets are masked
    Tap(tap::Tap),
    /// Restore the configuration of a version, in one transaction
    Rollback {
        /// The version
        #[arg(value_name = "VERSION")]
        version: u64,
        /// Check everything and store nothing
        #[arg(long)]
        dry_run: bool,
    },
    /// Revert the newest change of resources. A second `undo` reverts the first
    Undo {
        /// Check everything and store nothing
        #[arg(long)]
        dry_run: bool,
    },
    /// Print the whole configuration, as a backup or for another gateway
    Dump,
    /// Check a configuration without storing it, and list all its problems
    Validate {
        /// The configuration
        #[arg(short = 'f', long = "file", value_name = "FILE")]
        file: PathBuf,
    },
    /// Show the revision of the configuration that each gateway serves
    Nodes(Controls),
    /// List the nodes of upstreams: state, health, and why a node gets no requests
    Upstreams {
        /// The resource that contains the upstream, such as upstreams/1 or routes/1; all without it
        #[arg(value_name = "UPSTREAM")]
        upstream: Option<String>,
        /// The Control API. Without it, the Admin API if there is a key [default: http://127.0.0.1:9090]
        #[arg(long, value_name = "URL")]
        control: Option<String>,
    },
    /// Set the state of a node: ready, drain or maintenance. It is kept over reloads and restarts
    NodeState {
        /// The resource that contains the upstream, such as upstreams/1 or routes/1
        #[arg(value_name = "UPSTREAM")]
        upstream: String,
        /// The node, as `upstreams` lists it: its name or its address
        #[arg(value_name = "NODE")]
        node: String,
        /// `ready`: all requests; `drain`: requests of existing sessions only; `maintenance`: no requests
        #[arg(value_parser = ["ready", "drain", "maintenance"])]
        state: String,
        /// A Control API; may be given several times. Without it, the Admin API if there is a key [default:
        /// http://127.0.0.1:9090]
        #[arg(long, value_name = "URL")]
        control: Vec<String>,
    },
    /// Test nodes with a share of live requests that grows until a limit of latency or errors
    Stress {
        #[command(subcommand)]
        act: stress::Act,
        /// The Control API. Without it, the Admin API if there is a key [default: http://127.0.0.1:9090]
        #[arg(long, value_name = "URL", global = true)]
        control: Option<String>,
    },
    /// List the certificates that gateways send to clients, sorted by expiry
    #[command(after_help = "Exit status 3: a certificate has expired or is unreadable.")]
    Certificates(Controls),
    /// List the certificates that gateways order by ACME: state, next attempt and last error
    Acme {
        #[command(subcommand)]
        act: Option<orders::Act>,
        /// A Control API. Without it, the Admin API if there is a key [default: http://127.0.0.1:9090]. Gateways with one
        /// etcd share their orders: any of them will do
        #[arg(long, value_name = "URL", global = true)]
        control: Vec<String>,
    },
    /// List the quarantined resources, with the reasons why gateways cannot serve them
    Quarantine(Controls),
}

/// Control APIs that a command asks.
#[derive(Debug, Args)]
struct Controls {
    /// A Control API; may be given several times. Without it, the Admin API if there is a key [default:
    /// http://127.0.0.1:9090]
    #[arg(long, value_name = "URL")]
    control: Vec<String>,
    /// A Control API, as with --control
    #[arg(value_name = "URL")]
    urls: Vec<String>,
}

impl Controls {
    fn all(self) -> Vec<String> {
        [self.control, self.urls].concat()
    }
}

#[derive(Debug, Args)]
struct Change {
    /// The file; `-` for standard input
    #[arg(short = 'f', long = "file", value_name = "FILE")]
    file: PathBuf,
    /// Check everything and store nothing
    #[arg(long)]
    dry_run: bool,
}

/// Runs a command.
pub(crate) fn execute(ctl: Ctl) -> Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(run(ctl))
}

async fn run(ctl: Ctl) -> Result<ExitCode> {
    let form = ctl.output;
    let client = Client::known_as(ctl.identity, ctl.admin, key(ctl.key, ctl.key_file)?)?;
    match ctl.command {
        Verb::Get { kind, id } => {
            let found = client.call(Method::Get, &resource(&kind, Some(&id))?, None).await?;
            output::print(form.unwrap_or(Form::Json), &found["value"])?;
        }
        Verb::List { kind, name, uri, label } => {
            let filters = [("name", name), ("uri", uri), ("label", label)];
            let filters = filters.iter().filter_map(|(name, value)| Some((*name, value.as_deref()?)));
            let path = client::with_query(&resource(&kind, None)?, filters);
            let found = client.call(Method::Get, &path, None).await?;
            output::print_list(form.unwrap_or(Form::Table), &found["list"])?;
        }
        Verb::Put { kind, id, change } => {
            let path = resource(&kind, id.as_deref())?;
            let sent = Sent::resource(&change.file, &path)?;
            let body = &sent.value;
            // A resource without an id gets one from the gateway.
            let named = id.is_some() || body.get("id").or_else(|| body.get("username")).is_some();
            let method =
                if !named && MAKES_IDS.contains(&path.as_str()) { Method::Post } else { Method::Put };
            let written = write(&client, method, &path, &change, body, form).await;
            written.map_err(|error| sent.refused(error))?;
        }
        Verb::Patch { kind, id, change } => {
            let path = resource(&kind, Some(&id))?;
            let body = document::part(&change.file)?;
            write(&client, Method::Patch, &path, &change, &body, form).await?;
        }
        Verb::Delete { kind, id, force, dry_run } => {
            let arguments = [("force", force), ("dry_run", dry_run)];
            let arguments = arguments.iter().filter(|(_, given)| *given).map(|(name, _)| (*name, "true"));
            let path = client::with_query(&resource(&kind, Some(&id))?, arguments);
            client.call(Method::Delete, &path, None).await?;
        }
        Verb::Apply { change } => apply(&client, &change).await?,
        Verb::Diff { file: Some(file), .. } => return diff(&client, &file).await,
        Verb::Diff { file: None, versions, past } => {
            let [from, to] = versions[..] else {
                bail!("name two versions, as `sigma ctl history` lists them")
            };
            return history::difference(&client, past, from, to, form).await;
        }
        Verb::History { version: Some(version), past, .. } => {
            history::one(&client, past, version, form).await?;
        }
        Verb::History { version: None, limit, before, past } => {
            history::list(&client, past, limit, before, form).await?;
        }
        Verb::Tap(tap) => return tap::show(&client, tap).await,
        Verb::Members(members) => members.list(&client, form).await?,
        Verb::Purge(purge) => purge.order(&client, form).await?,
        Verb::Explain(wish) => return explain::show(&client, wish, form).await,
        Verb::Rollback { version, dry_run } => history::rollback(&client, version, dry_run, form).await?,
        Verb::Undo { dry_run } => history::undo(&client, dry_run, form).await?,
        Verb::Nodes(controls) => {
            return nodes(&client.choose(&controls.all())?, form.unwrap_or(Form::Table)).await;
        }
        Verb::Upstreams { upstream, control } => {
            // A URL names a Control API, as with `nodes`.
            let (urls, upstream): (Vec<String>, Vec<String>) =
                upstream.into_iter().partition(|text| text.contains("://"));
            let upstream = upstream.into_iter().next();
            let control: Vec<String> = control.or_else(|| urls.into_iter().next()).into_iter().collect();
            for client in client.choose(&control)? {
                let found = client.nodes(upstream.as_deref()).await?;
                output::print_upstreams(form.unwrap_or(Form::Table), &found)?;
            }
        }
        Verb::NodeState { upstream, node, state, control } => {
            for client in client.choose(&control)? {
                set_node_state(&client, &upstream, &node, &state).await?;
            }
        }
        Verb::Stress { act, control } => {
            let control: Vec<String> = control.into_iter().collect();
            // Without several `--control` there is one.
            let client = client.choose(&control)?.swap_remove(0);
            return stress::execute(&client, act, form.unwrap_or(Form::Table)).await;
        }
        Verb::Acme { act: None, control } => {
            return orders::list(&client.choose(&control)?, form.unwrap_or(Form::Table)).await;
        }
        Verb::Acme { act: Some(orders::Act::Order { name }), control } => {
            for client in client.choose(&control)? {
                orders::order(&client, &name).await?;
            }
        }
        Verb::Quarantine(controls) => {
            return quarantine(&client.choose(&controls.all())?, form.unwrap_or(Form::Table)).await;
        }
        Verb::Certificates(controls) => {
            return certificates::list(&client.choose(&controls.all())?, form.unwrap_or(Form::Table)).await;
        }
        Verb::Dump => {
            let mut found = client.call(Method::Get, "configs", None).await?;
            document::without_bookkeeping(&mut found);
            output::print(form.unwrap_or(Form::Yaml), &found)?;
        }
        Verb::Validate { file } => {
            let sent = Sent::configuration(&file)?;
            let valid = client.call(Method::Post, "configs/validate", Some(&sent.value)).await;
            valid.map_err(|error| sent.refused(error))?;
            println!("{}: ok", file.display());
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn set_node_state(client: &Client, upstream: &str, node: &str, state: &str) -> Result<()> {
    let base = client.base();
    let set = client.set_node_state(upstream, node, state).await;
    let set = set.with_context(|| base.to_owned())?;
    let held = set.get("state").and_then(Value::as_str).unwrap_or(state);
    println!("{base}: {node} of {upstream}: {held}");
    if let Some(note) = set.get("note").and_then(Value::as_str) {
        println!("{base}: {note}");
    }
    Ok(())
}

fn key(given: Option<String>, file: Option<PathBuf>) -> Result<Option<String>> {
    if let Some(file) = file {
        let text = std::fs::read_to_string(&file)
            .with_context(|| format!("cannot read the key in {}", file.display()))?;
        return Ok(Some(text.trim().to_owned()));
    }
    Ok(given.or_else(|| std::env::var("SIGMA_ADMIN_KEY").ok()))
}

/// The path of a collection or of a resource in it. `route` is read as `routes`.
fn resource(kind: &str, id: Option<&str>) -> Result<String> {
    const SINGLE: [(&str, &str); 13] = [
        ("route", "routes"),
        ("service", "services"),
        ("upstream", "upstreams"),
        ("ssl", "ssls"),
        ("consumer", "consumers"),
        ("consumer_group", "consumer_groups"),
        ("plugin_config", "plugin_configs"),
        ("global_rule", "global_rules"),
        ("plugin_metadatas", "plugin_metadata"),
        ("proto", "protos"),
        ("stream_route", "stream_routes"),
        ("secret", "secrets"),
        ("credential", "consumers/NAME/credentials"),
    ];
    let kind = kind.trim_matches('/');
    // A collection may be written with dashes; the name of a consumer has its own.
    let kind = if kind.contains('/') { kind.to_owned() } else { kind.replace('-', "_") };
    let collection = SINGLE.iter().find(|(single, _)| *single == kind).map_or(kind.as_str(), |(_, all)| all);
    if collection.contains("NAME") || collection == "credentials" {
        bail!("credentials belong to a consumer: write consumers/NAME/credentials");
    }
    // A secret's id has its manager in front.
    let valid = |id: &&str| !id.is_empty() && !id.contains(['?', '#', '%', ' ']);
    match id {
        None => Ok(collection.to_owned()),
        Some(id) => {
            let id = Some(id).filter(valid).ok_or_else(|| anyhow!("`{id}` is not a valid id"))?;
            Ok(format!("{collection}/{id}"))
        }
    }
}

async fn write(
    client: &Client,
    method: Method,
    path: &str,
    change: &Change,
    body: &Value,
    form: Option<Form>,
) -> Result<()> {
    let dry_run = change.dry_run.then_some(("dry_run", "true"));
    let path = client::with_query(path, dry_run.into_iter());
    let written = client.call(method, &path, Some(body)).await?;
    match form {
        Some(form) => output::print(form, &written["value"])?,
        None => {
            let key = written["key"].as_str().unwrap_or_default();
            println!("{key}: {}", if change.dry_run { "would be written" } else { "written" });
        }
    }
    Ok(())
}

async fn apply(client: &Client, change: &Change) -> Result<()> {
    let sent = Sent::configuration(&change.file)?;
    let mut arguments = vec![("check_references", "true")];
    arguments.extend(change.dry_run.then_some(("dry_run", "true")));
    let path = client::with_query("configs", arguments.into_iter());
    let replaced = client.replace(&path, &sent.value).await;
    let status = replaced.map_err(|error| sent.refused(error))?;
    let done = match (status, change.dry_run) {
        (204, _) => "is already in force",
        (_, true) => "is valid and would be applied",
        (_, false) => "applied",
    };
    println!("{}: {done}", change.file.display());
    Ok(())
}

async fn diff(client: &Client, file: &std::path::Path) -> Result<ExitCode> {
    let wanted = Sent::configuration(file)?.value;
    let mut present = client.call(Method::Get, "configs", None).await?;
    document::without_bookkeeping(&mut present);
    let differences = document::differences(&present, &wanted);
    differences.iter().for_each(|line| println!("{line}"));
    Ok(if differences.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(DIFFERENT) })
}

async fn nodes(clients: &[Client], form: Form) -> Result<ExitCode> {
    let (rows, all_answered) = revisions(clients).await;
    output::print_nodes(form, &Value::Array(rows))?;
    Ok(if all_answered { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn quarantine(clients: &[Client], form: Form) -> Result<ExitCode> {
    let (rows, all_answered) = revisions(clients).await;
    output::print_quarantine(form, &rows)?;
    Ok(if all_answered { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The reports of gateways, each with its `node`; and whether all responded.
async fn revisions(clients: &[Client]) -> (Vec<Value>, bool) {
    let mut rows = Vec::new();
    let mut all_answered = true;
    for client in clients {
        rows.push(match client.revision().await {
            Ok(mut found) => {
                found["node"] = client.base().into();
                found
            }
            Err(error) => {
                all_answered = false;
                json!({"node": client.base(), "error": format!("{error:#}")})
            }
        });
    }
    (rows, all_answered)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_apis_are_named_with_and_without_the_option() {
        use clap::Parser;

        let check = |arguments: &[&str], expected: &[&str]| {
            for command in ["nodes", "certificates", "quarantine"] {
                let line = [&["sigma", "ctl", command], arguments].concat();
                let cli = crate::args::Cli::try_parse_from(line).unwrap();
                let crate::args::Command::Ctl(Ctl { command, .. }) = cli.command else { panic!("not ctl") };
                let (Verb::Nodes(controls) | Verb::Certificates(controls) | Verb::Quarantine(controls)) =
                    command
                else {
                    panic!("another command")
                };
                assert_eq!(controls.all(), expected, "{arguments:?}");
            }
        };
        check(&[], &[]);
        check(&["http://a", "http://b"], &["http://a", "http://b"]);
        check(&["--control", "http://a", "--control", "http://b"], &["http://a", "http://b"]);
        check(&["http://b", "--control", "http://a"], &["http://a", "http://b"]);
    }

    #[test]
    fn kinds_and_ids_make_paths() {
        let check = |kind: &str, id: Option<&str>, expected: Option<&str>| {
            assert_eq!(resource(kind, id).ok().as_deref(), expected, "{kind} {id:?}");
        };
        check("routes", Some("1"), Some("routes/1"));
        check("route", None, Some("routes"));
        check("plugin-configs", None, Some("plugin_configs"));
        check("consumers/jack/credentials", Some("c"), Some("consumers/jack/credentials/c"));
        check("consumers/jack-the-lad/credentials", Some("c"), Some("consumers/jack-the-lad/credentials/c"));
        check("credential", Some("c"), None);
        check("secret", Some("vault/1"), Some("secrets/vault/1"));
        check("routes", Some("a?b"), None);
        check("routes", Some(""), None);
    }
}
