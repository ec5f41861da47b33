//! The command line, and the command lines of the programs that Sigma replaces.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

/// An API gateway and reverse proxy.
#[derive(Debug, Parser)]
#[command(
    name = "sigma",
    version,
    arg_required_else_help = true,
    after_help = "Exit status: 0 done; 1 the configuration is invalid or the gateway cannot start, details on stderr; 2 wrong usage; 3 `routes` found no route for the request.\n\
Without arguments, in a folder with a sigma.json: runs it, with options.json if there is one.\n\
NiubiX's `-c FILE` and `-t -c FILE` are read as `run -c FILE` and `check FILE`, nginx's `-s reload`, `stop`, `quit` and `reopen` as the commands of these names."
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Write a configuration to start from
    Init(Init),
    /// Convert another gateway's configuration or an OpenAPI document
    #[command(subcommand)]
    Import(Import),
    /// Send the same requests to two servers, such as an original gateway and its conversion, and compare the responses
    Probe(Compare),
    /// Start the gateway
    Run(Run),
    /// Serve the files of a folder, without a configuration file
    Serve(Serve),
    /// Forward requests to a server, without a configuration file
    Proxy(Proxy),
    /// Check a configuration and list all its problems
    Check(Check),
    /// Reload the configuration of a running gateway
    Reload(Signal),
    /// Reopen the log files of a running gateway, after they were renamed
    Reopen(Signal),
    /// Stop a running gateway after its open requests have finished
    Stop(Signal),
    /// List the gateways that run on this machine
    List,
    /// Start a gateway without routes, on the default port
    #[command(hide = true)]
    Bare,
    /// Upgrade a running gateway: start its program again, hand over the sockets, and end the old process
    Upgrade(Signal),
    /// Show which route matches a request, and why the others do not
    Routes(Routes),
    /// Explain a `reason` of a log line or an error response, with its remedy
    Explain(Explain),
    /// Read and change the resources of running gateways
    Ctl(crate::ctl::Ctl),
    /// Run a Lua file against one request, and print the result
    Lua(Lua),
    /// List the plugins of this build, or print the reference of one
    Plugins(Plugins),
    /// Print the completion script for a shell
    Completions(Completions),
    /// Print the manual page: `sigma man | man -l -`
    Man,
    /// Print the version
    Version,
}

#[derive(Debug, Args)]
pub(crate) struct Init {
    /// The file to write [default: sigma.yaml]
    #[arg(value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// With a listener for HTTPS
    #[arg(long)]
    pub(crate) https: bool,
    /// With the Admin API, and a store for the resources that are written through it
    #[arg(long)]
    pub(crate) admin: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Import {
    /// A route for each operation of an OpenAPI document (3.0 or 3.1)
    Openapi(ImportOpenApi),
    /// nginx.conf
    Nginx(ImportFiles),
    /// application.yml of Spring Cloud Gateway
    Spring(ImportFiles),
    /// Traefik's static and dynamic files, and compose files with its labels
    Traefik(ImportFiles),
    /// haproxy.cfg
    Haproxy(ImportFiles),
    /// A Caddyfile
    Caddy(ImportFiles),
    /// Envoy's static bootstrap
    Envoy(ImportFiles),
    /// Kong's declarative configuration
    Kong(ImportFiles),
    /// krakend.json
    Krakend(ImportFiles),
    /// config.yaml of APISIX with its apisix.yaml
    Apisix(ImportFiles),
}

#[derive(Debug, Args)]
#[command(
    after_help = "Exit status: 0 written; 1 the source cannot be read; 2 a guard of access cannot be converted: its routes return 503 in the written file; with --strict no file is written."
)]
pub(crate) struct ImportFiles {
    /// The files; files that they include are read too
    #[arg(value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,
    /// The file to write [default: the standard output]
    #[arg(short = 'o', long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Format of the report on each line of the source; printed to stdout with -o, else to stderr
    #[arg(long, value_enum, default_value_t = ReportForm::Text)]
    pub(crate) report: ReportForm,
    /// Write no file if a guard of access cannot be converted
    #[arg(long, conflicts_with = "accept_gaps")]
    pub(crate) strict: bool,
    /// Exit with status 0 even if routes return 503 because their guard cannot be converted
    #[arg(long)]
    pub(crate) accept_gaps: bool,
    /// Write requests that compare the original with the result, as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) probe: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Exit status: 0 all responses are equal; 1 some differ, or a server cannot be reached.\n\
It compares the status, Location, the attributes of cookies, the body of 2xx responses, and all fields except those that frame the message."
)]
pub(crate) struct Compare {
    /// The original: http://HOST:PORT, https://HOST:PORT, or PORT=URL for the probes of one listener
    #[arg(long, value_name = "URL", required = true)]
    pub(crate) left: Vec<String>,
    /// The other server, in the same form
    #[arg(long, value_name = "URL", required = true)]
    pub(crate) right: Vec<String>,
    /// The requests, as `sigma import --probe` writes them
    #[arg(short = 'f', long, value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// A header field whose differences are ignored, such as x-served-by
    #[arg(long, value_name = "FIELD")]
    pub(crate) allow: Vec<String>,
    /// Certificates of authorities for https, a PEM file [default: the system's]
    #[arg(long, value_name = "FILE", conflicts_with = "insecure")]
    pub(crate) cacert: Option<PathBuf>,
    /// Accept any certificate
    #[arg(long)]
    pub(crate) insecure: bool,
    /// Timeout of each request, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 10_000)]
    pub(crate) timeout_ms: u64,
    /// The form of the report
    #[arg(long, value_enum, default_value_t = ReportForm::Text)]
    pub(crate) report: ReportForm,
}

/// The form of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ReportForm {
    /// Differences and gaps line by line
    Text,
    /// All lines
    Json,
}

#[derive(Debug, Args)]
pub(crate) struct ImportOpenApi {
    /// The document: JSON or YAML
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// The node behind the gateway, instead of the first server of the document
    #[arg(long, value_name = "URL")]
    pub(crate) upstream: Option<String>,
    /// Refuse requests that the document does not describe, with the plugin oas-validator
    #[arg(long)]
    pub(crate) validate: bool,
    /// The file to write [default: the standard output]
    #[arg(short = 'o', long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = "bash: source <(sigma completions bash)\n\
zsh:  sigma completions zsh > \"${fpath[1]}/_sigma\"\n\
fish: sigma completions fish > ~/.config/fish/completions/sigma.fish")]
pub(crate) struct Completions {
    /// The shell
    #[arg(value_enum)]
    pub(crate) shell: clap_complete::Shell,
}

#[derive(Debug, Args)]
pub(crate) struct Plugins {
    /// The plugin whose reference is printed; without it all are listed
    #[arg(value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Also list the plugins in Lua files that this configuration names
    #[arg(short = 'c', long, value_name = "FILE")]
    pub(crate) conf: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Lua {
    /// The file: a plugin, or a text that returns a function
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// The target of the request
    #[arg(value_name = "TARGET", default_value = "/")]
    pub(crate) target: String,
    /// The method of the request
    #[arg(short = 'X', long, value_name = "METHOD", default_value = "GET")]
    pub(crate) method: String,
    /// A field of the request, such as `X-Token: abc`; may be repeated
    #[arg(short = 'H', long, value_name = "FIELD")]
    pub(crate) header: Vec<String>,
    /// The body of the request
    #[arg(short = 'd', long, value_name = "TEXT")]
    pub(crate) data: Option<String>,
    /// The configuration of the plugin, in JSON
    #[arg(long, value_name = "JSON")]
    pub(crate) config: Option<String>,
    /// The metadata of the plugin, in JSON
    #[arg(long, value_name = "JSON")]
    pub(crate) metadata: Option<String>,
    /// The setting `plugin_attr`, in JSON
    #[arg(long, value_name = "JSON")]
    pub(crate) attributes: Option<String>,
    /// The phase of a function; a plugin runs in all its phases
    #[arg(long, value_name = "PHASE", default_value = "access")]
    pub(crate) phase: String,
    /// Search path for modules that the file requires, as in the setting `lua.path`
    #[arg(long, value_name = "PATH")]
    pub(crate) path: Option<String>,
    /// The status of the node's response
    #[arg(long, value_name = "STATUS", default_value_t = 200)]
    pub(crate) status: u16,
    /// The body of the node's response
    #[arg(long, value_name = "TEXT", default_value = "hello")]
    pub(crate) response: String,
}

#[derive(Debug, Args)]
pub(crate) struct Explain {
    /// The word: `reason` of a body or of a line of the error log, or `$fault` of an access line; or a status, such as 503
    #[arg(value_name = "REASON")]
    pub(crate) reason: String,
}

#[derive(Debug, Args)]
pub(crate) struct Run {
    /// The configuration file: YAML or JSON, sigma.json or niubix.json; or JSON itself [default: sigma.yaml]
    #[arg(value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// The same, as an option
    #[arg(short = 'c', long = "conf", value_name = "FILE", conflicts_with = "file")]
    pub(crate) conf: Option<PathBuf>,
    /// The options.json next to a sigma.json, as a file or as JSON
    #[arg(long = "options", value_name = "FILE")]
    pub(crate) options: Option<PathBuf>,
    /// Number of workers of a sigma.json
    #[arg(long = "instance", value_name = "N")]
    pub(crate) instance: Option<u16>,
    /// Accepted for the original Sigma's command line, without effect
    #[arg(long = "java-opts", hide = true, allow_hyphen_values = true)]
    pub(crate) java_opts: Option<String>,
    /// Go to the background with a sigma.json; `start` of the original Sigma says so
    #[arg(long, hide = true)]
    pub(crate) in_background: bool,
    /// Go to the background with a niubix.json, as NiubiX does; its own command line says so
    #[arg(long, hide = true)]
    pub(crate) as_niubix: bool,
    /// Reload when the file changes
    #[arg(long)]
    pub(crate) watch: bool,
    /// Serve the rest of a file that has invalid resources; requests for the invalid ones get 503
    #[arg(long)]
    pub(crate) skip_invalid: bool,
    /// Also start a small origin at each of these addresses, to try the gateway with
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',')]
    pub(crate) with_demo_origin: Vec<SocketAddr>,
    /// Also start a small OpenID provider at this loopback address, to try logins; it accepts every login
    #[arg(long, value_name = "ADDRESS", value_parser = crate::demo_provider::address)]
    pub(crate) with_demo_provider: Option<SocketAddr>,
}

#[derive(Debug, Args)]
pub(crate) struct Serve {
    /// The folder
    #[arg(value_name = "FOLDER")]
    pub(crate) folder: PathBuf,
    /// The address to listen at [default: 127.0.0.1:9080]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) listen: Option<String>,
    /// Serve index.html for paths without a file, for applications of a single page
    #[arg(long)]
    pub(crate) spa: bool,
    /// List the files of folders without an index.html
    #[arg(long)]
    pub(crate) listing: bool,
    #[command(flatten)]
    pub(crate) secure: Secure,
}

#[derive(Debug, Args)]
pub(crate) struct Proxy {
    /// The server, such as http://127.0.0.1:9000
    #[arg(long, value_name = "URL")]
    pub(crate) to: String,
    /// The address to listen at [default: 127.0.0.1:9080]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) listen: Option<String>,
    #[command(flatten)]
    pub(crate) secure: Secure,
}

#[derive(Debug, Args)]
pub(crate) struct Secure {
    /// Serve this name over HTTPS on port 443, with a certificate from Let's Encrypt; port 80 redirects
    #[arg(long, value_name = "NAME")]
    pub(crate) https: Option<String>,
    /// You agree to the terms of service of Let's Encrypt
    #[arg(long)]
    pub(crate) agree_to_terms: bool,
    /// The address for messages of the authority
    #[arg(long, value_name = "EMAIL")]
    pub(crate) email: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Check {
    /// The configuration file [default: sigma.yaml]
    #[arg(value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// The same, as an option
    #[arg(short = 'c', long = "conf", value_name = "FILE", conflicts_with = "file")]
    pub(crate) conf: Option<PathBuf>,
    /// The options.json next to a sigma.json, as a file or as JSON
    #[arg(long = "options", value_name = "FILE")]
    pub(crate) options: Option<PathBuf>,
    /// Print the configuration as Sigma understands it, in full, as JSON
    #[arg(long)]
    pub(crate) print: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Signal {
    /// The running gateway's configuration file, which names its pid file [default: sigma.yaml]
    #[arg(short = 'c', long = "conf", value_name = "FILE", conflicts_with_all = ["pid", "pid_file"])]
    pub(crate) conf: Option<PathBuf>,
    /// Its pid file
    #[arg(long, value_name = "FILE")]
    pub(crate) pid_file: Option<PathBuf>,
    /// Its process id
    #[arg(long, value_name = "PID")]
    pub(crate) pid: Option<i32>,
}

#[derive(Debug, Args)]
pub(crate) struct Routes {
    /// Method of the request
    pub(crate) method: String,
    /// Host of the request
    pub(crate) host: String,
    /// Path and query of the request
    pub(crate) path: String,
    /// The configuration file
    #[arg(short = 'c', long = "conf", value_name = "FILE", default_value = "sigma.yaml")]
    pub(crate) conf: PathBuf,
}

/// The file of a command for which none is named.
pub(crate) const DEFAULT_FILE: &str = "sigma.yaml";

/// The verticle that the original Sigma's command line starts, before its options.
const VERTICLE: &str = "net.oooops.sigma.Sigma";

/// Rewrites the command lines of the original Sigma, of NiubiX and of nginx into Sigma's own.
pub(crate) fn normalised(args: impl Iterator<Item = OsString>, has_sigma_json: bool) -> Vec<OsString> {
    let args: Vec<OsString> = args.collect();
    let word = |at: usize| args.get(at).and_then(|arg| arg.to_str()).unwrap_or_default();
    if args.len() == 1 && has_sigma_json {
        return vec![args[0].clone(), "run".into(), "--conf".into(), "sigma.json".into()];
    }
    match word(1) {
        "-v" => return vec![args[0].clone(), "version".into()],
        "-c" | "-t" => return niubix(&args),
        "-s" => {
            if let Some(command) = order(word(2)) {
                return [args[0].clone(), command.into()]
                    .into_iter()
                    .chain(args[3..].iter().cloned())
                    .collect();
            }
        }
        _ => {}
    }
    let starts = word(1) == "start";
    let verticle = ((word(1) == "run" || starts) && word(2) == VERTICLE).then_some(2);
    let mut renamed = Vec::with_capacity(args.len() + 1);
    let mut rest = args.into_iter().enumerate().filter(|(at, _)| Some(*at) != verticle);
    while let Some((at, arg)) = rest.next() {
        match arg.to_str() {
            Some("start") if at == 1 => renamed.extend(["run".into(), "--in-background".into()]),
            Some("-conf") => renamed.push("--conf".into()),
            Some("-options") => renamed.push("--options".into()),
            Some("-instance" | "-instances") => renamed.push("--instance".into()),
            // Processes are found by their ids, and the output goes to the log.
            Some("-id" | "--vertx-id" | "--launcher-class") if starts => drop(rest.next()),
            Some("--redirect-output") if starts => {}
            _ => renamed.push(arg),
        }
    }
    renamed
}

/// The command for an order of nginx's `-s`.
fn order(name: &str) -> Option<&'static str> {
    Some(match name {
        // Both drain here; a second one ends at once.
        "stop" | "quit" => "stop",
        "reload" => "reload",
        "reopen" => "reopen",
        "upgrade" => "upgrade",
        _ => return None,
    })
}

fn niubix(args: &[OsString]) -> Vec<OsString> {
    let is = |arg: &OsString, text: &str| arg.to_str() == Some(text);
    let test = args.iter().any(|arg| is(arg, "-t"));
    let mut out = vec![args[0].clone(), if test { "check".into() } else { "run".into() }];
    if !test {
        out.push("--as-niubix".into());
    }
    out.extend(args[1..].iter().filter(|arg| !is(arg, "-t")).cloned());
    // `-t FILE` without -c names the file too.
    if test && out.len() == 3 {
        out.insert(2, "-c".into());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(given: &[&str], has_sigma_json: bool, expected: &[&str]) {
        let given = std::iter::once("sigma").chain(given.iter().copied()).map(OsString::from);
        let got = normalised(given, has_sigma_json);
        let expected: Vec<OsString> =
            std::iter::once("sigma").chain(expected.iter().copied()).map(OsString::from).collect();
        assert_eq!(got, expected);
        assert!(Cli::try_parse_from(got).is_ok() || expected.len() == 1);
    }

    /// A named file is used, anywhere in the command line.
    #[test]
    fn run_takes_its_file_with_and_without_an_option() {
        for given in [["run", "a.yaml"].as_slice(), &["run", "-c", "a.yaml"], &["run", "--conf", "a.yaml"]] {
            let cli = Cli::try_parse_from(std::iter::once(&"sigma").chain(given)).unwrap();
            let Command::Run(run) = cli.command else { panic!("not a run: {given:?}") };
            assert_eq!(run.file.or(run.conf), Some("a.yaml".into()), "{given:?}");
        }
        assert!(Cli::try_parse_from(["sigma", "run", "a.yaml", "-c", "b.yaml"]).is_err());
        assert!(Cli::try_parse_from(["sigma", "run", "a.yaml", "b.yaml"]).is_err());
    }

    #[test]
    fn command_lines_of_other_programs() {
        check(&[], false, &[]);
        check(&[], true, &["run", "--conf", "sigma.json"]);
        check(
            &["start", "net.oooops.sigma.Sigma", "-id", "a", "-conf", "{}", "--redirect-output"],
            false,
            &["run", "--in-background", "--conf", "{}"],
        );
        check(&["list"], false, &["list"]);
        check(&["bare"], false, &["bare"]);
        check(
            &["run", "net.oooops.sigma.Sigma", "-conf", "a.json", "-options", "o.json", "-instance", "1"],
            false,
            &["run", "--conf", "a.json", "--options", "o.json", "--instance", "1"],
        );
        check(&["run", "a.yaml"], true, &["run", "a.yaml"]);
        check(&["run", "net.example.Other"], true, &["run", "net.example.Other"]);
        check(&["-c", "niubix.json"], false, &["run", "--as-niubix", "-c", "niubix.json"]);
        check(&["-t", "-c", "niubix.json"], false, &["check", "-c", "niubix.json"]);
        check(&["-t", "niubix.json"], false, &["check", "-c", "niubix.json"]);
        check(&["-s", "reload", "-c", "a.yaml"], false, &["reload", "-c", "a.yaml"]);
        check(&["-s", "quit", "--pid", "7"], true, &["stop", "--pid", "7"]);
        check(&["-s", "upgrade"], false, &["upgrade"]);
        check(&["-v"], false, &["version"]);
        check(&["import", "openapi", "a.yaml"], true, &["import", "openapi", "a.yaml"]);
        check(&["check", "a.yaml"], true, &["check", "a.yaml"]);
    }
}
