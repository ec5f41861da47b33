//! The cost of users' code: Sigma and another gateway with the same code, and both without it.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, ensure};

use super::{Outcome, Suite, kept, kept_sections};
use crate::bench::contender::{envoy_with, nginx_with_lua};
use crate::bench::install::{go_program, wasm_filter};
use crate::bench::launch::{Launch, Running, Workplace};
use crate::bench::process::{LOAD_CORE, Pinned, await_listening, free_port};
use crate::bench::shape::SMALL;
use crate::bench::trial::{self, Measure, Results, Target};
use crate::bench::{Bench, Folders, process, report};

pub(super) const SUITE: Suite = Suite {
    name: "extensions",
    peers: &["nginx", "envoy"],
    tools: &["wrk", DEBIANS_NGINX, LUA_MODULE],
    trials,
    measure,
    report: |folders: &Folders| kept_sections(folders, SUITE.name, &TRIALS),
    publish: report::write,
};

/// The nginx that Debian's module is for, wherever another one is in `PATH`.
const DEBIANS_NGINX: &str = "/usr/sbin/nginx";
const LUA_MODULE: &str = "/usr/lib/nginx/modules/ngx_http_lua_module.so";

/// Code that sets a request field to the address of the client, in Lua, in a module of WebAssembly, in a processor next to
/// the gateway; and a runner that the gateway asks for each request.
const TRIALS: [&str; 4] = ["lua", "wasm", "ext-proc", "runner"];

/// The function: the same text for both.
const FUNCTION: &str = r#"ngx.req.set_header("X-Client", ngx.var.remote_addr)"#;

/// The most time of a server of a trial for its start.
const START_LIMIT: Duration = Duration::from_secs(10);

fn trials() -> Vec<&'static str> {
    TRIALS.to_vec()
}

/// The gateways of a trial, and the server that they call.
struct Contest {
    launches: Vec<Launch>,
    /// A processor or a runner.
    _beside: Option<Pinned>,
    heading: &'static str,
    text: &'static str,
}

/// Sigma's configuration with these plugins on its only route, and further sections.
fn sigma(port: u16, origin: u16, plugins: &str, sections: &str) -> String {
    let plugins = if plugins.is_empty() { String::new() } else { format!(", plugins: {{ {plugins} }}") };
    format!(
        "workers: 1\n\
         listeners: [ {{ address: \"127.0.0.1:{port}\" }} ]\n\
         access_log: \"off\"\n\
         upstreams: [ {{ id: \"1\", type: roundrobin, nodes: {{ \"127.0.0.1:{origin}\": 1 }} }} ]\n\
         {sections}\
         routes: [ {{ id: \"1\", uri: \"/*\", upstream_id: \"1\"{plugins} }} ]\n"
    )
}

/// The plugin that runs `function`.
fn lua_plugin(function: &str) -> String {
    let text = format!("return function() {function} end");
    format!("serverless-pre-function: {{ functions: [ {text:?} ] }}")
}

fn nginx(work: &Path, label: &str, origin: u16, function: &str) -> anyhow::Result<Launch> {
    let port = free_port()?;
    let place = Workplace::new(work, label)?;
    let config = place.write("nginx.conf", &nginx_with_lua(port, origin, LUA_MODULE, function))?;
    let prefix = place.folder.display().to_string();
    let words = [DEBIANS_NGINX, "-p", &prefix, "-c", &config, "-e", "stderr"];
    let command = words.iter().map(|&word| word.to_owned()).collect();
    Ok(Launch { label: label.to_owned(), command, log: place.folder.join("log"), port })
}

/// Envoy with a filter for requests, and further clusters; empty texts for none.
fn envoy(
    bench: &Bench<'_>,
    label: &str,
    origin: u16,
    filter: &str,
    clusters: &str,
) -> anyhow::Result<Option<Launch>> {
    let Some(program) = bench.programs.envoy.as_ref() else { return Ok(None) };
    let port = free_port()?;
    let place = Workplace::new(&bench.folders.work, label)?;
    let config = place.write("envoy.yaml", &envoy_with(port, origin, filter, clusters))?;
    let flags = ["--concurrency", "1", "--disable-hot-restart", "--log-level", "error"];
    let words = [&*program.display().to_string(), "-c", &config];
    let command = words.iter().chain(&flags).map(|&word| word.to_owned()).collect();
    Ok(Some(Launch { label: label.to_owned(), command, log: place.folder.join("log"), port }))
}

impl Bench<'_> {
    /// Sigma with and without the plugins.
    fn both(&self, origin: u16, label: &str, plugins: &str, sections: &str) -> anyhow::Result<Vec<Launch>> {
        let launch = |label: &str, plugins: &str, sections: &str| {
            let port = free_port()?;
            let text = sigma(port, origin, plugins, sections);
            Launch::sigma(&self.programs, &self.folders.work, label, port, &text)
        };
        Ok(vec![launch(&format!("no {label}"), "", "")?, launch(&format!("a {label}"), plugins, sections)?])
    }
}

fn lua(bench: &Bench<'_>, origin: u16) -> anyhow::Result<Contest> {
    let mut launches = bench.both(origin, "function", &lua_plugin(FUNCTION), "")?;
    if bench.options.peers.iter().any(|peer| peer == "nginx") {
        for (label, function) in [("nginx, no function", ""), ("nginx, a function", FUNCTION)] {
            launches.push(nginx(&bench.folders.work, label, origin, function)?);
        }
    }
    Ok(Contest {
        launches,
        _beside: None,
        heading: "a function in Lua",
        text: "The function sets a request field to the address of the client, in Sigma as \
               `serverless-pre-function`, in Debian's nginx as `access_by_lua_block`.",
    })
}

/// Envoy's filter that runs a module.
fn envoy_wasm(file: &str) -> String {
    format!(
        "          - name: envoy.filters.http.wasm
            typed_config:
              \"@type\": type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm
              config:
                configuration: {{ \"@type\": type.googleapis.com/google.protobuf.StringValue, value: hello }}
                vm_config: {{ runtime: envoy.wasm.runtime.v8, code: {{ local: {{ filename: \"{file}\" }} }} }}
"
    )
}

fn wasm(bench: &Bench<'_>, origin: u16) -> anyhow::Result<Contest> {
    let file = wasm_filter(bench.folders)?.display().to_string();
    let plugin = format!("wasm: {{ file: {file:?}, conf: hello }}");
    let mut launches = bench.both(origin, "module", &plugin, "")?;
    launches.extend(envoy(bench, "Envoy, no module", origin, "", "")?);
    launches.extend(envoy(bench, "Envoy, a module", origin, &envoy_wasm(&file), "")?);
    Ok(Contest {
        launches,
        _beside: None,
        heading: "a filter in WebAssembly",
        text: "A filter with the SDK for Rust sets a request field to the address of the client, and a response \
               field.",
    })
}

/// Envoy's filter that asks a processor, and the cluster of the processor.
fn envoy_processor(port: u16) -> [String; 2] {
    let filter = "          - name: envoy.filters.http.ext_proc
            typed_config:
              \"@type\": type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor
              grpc_service: { envoy_grpc: { cluster_name: processor }, timeout: 60s }
              message_timeout: 10s
";
    let cluster = format!(
        "  - name: processor
    type: STATIC
    connect_timeout: 5s
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        \"@type\": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {{ http2_protocol_options: {{}} }}
    load_assignment:
      cluster_name: processor
      endpoints:
      - lb_endpoints:
        - endpoint: {{ address: {{ socket_address: {{ address: 127.0.0.1, port_value: {port} }} }} }}
"
    );
    [filter.to_owned(), cluster]
}

fn ext_proc(bench: &Bench<'_>, origin: u16) -> anyhow::Result<Contest> {
    let port = free_port()?;
    let program = go_program(bench.folders, "ext-proc")?.display().to_string();
    let command = [program, format!("127.0.0.1:{port}")];
    let mut processor = Pinned::start(LOAD_CORE, &command, &bench.folders.work.join("ext-proc.log"))?;
    await_listening(&mut processor, port, START_LIMIT).context("the processor does not listen")?;
    let plugin = format!(
        "ext-proc: {{ grpc_service: {{ uri: \"http://127.0.0.1:{port}\" }}, message_timeout: 10000 }}"
    );
    let mut launches = bench.both(origin, "processor", &plugin, "")?;
    let [filter, cluster] = envoy_processor(port);
    launches.extend(envoy(bench, "Envoy, no processor", origin, "", "")?);
    launches.extend(envoy(bench, "Envoy, a processor", origin, &filter, &cluster)?);
    Ok(Contest {
        launches,
        _beside: Some(processor),
        heading: "an external processor",
        text: "A processor in Go on the core of the load gets the heads of requests and responses, and sets a \
               field of each.",
    })
}

fn runner(bench: &Bench<'_>, origin: u16) -> anyhow::Result<Contest> {
    let socket = bench.folders.work.join("runner.sock");
    let _ = std::fs::remove_file(&socket);
    let address = format!("APISIX_LISTEN_ADDRESS=unix:{}", socket.display());
    let program = go_program(bench.folders, "go-runner")?.display().to_string();
    let command = ["env".to_owned(), address, "APISIX_CONF_EXPIRE_TIME=3600".to_owned(), program];
    let mut runner = Pinned::start(LOAD_CORE, &command, &bench.folders.work.join("runner.log"))?;
    let start = std::time::Instant::now();
    while !socket.exists() {
        runner.expect_alive().context("the runner does not start")?;
        ensure!(start.elapsed() < START_LIMIT, "the runner does not listen");
        std::thread::sleep(Duration::from_millis(1));
    }
    let plugin = "ext-plugin-pre-req: { conf: [ { name: limit-req, value: '{\"rate\":1000000000,\"burst\":1000000000}' } ] }";
    let sections = format!("ext-plugin: {{ path: {:?} }}\n", socket.display().to_string());
    Ok(Contest {
        launches: bench.both(origin, "runner", plugin, &sections)?,
        _beside: Some(runner),
        heading: "a runner",
        text: "APISIX's runner for Go on the core of the load gets each request, and lets it pass.",
    })
}

fn measure(bench: &Bench<'_>, trial: &str) -> anyhow::Result<Outcome> {
    let Bench { options, folders, programs } = bench;
    let origin = process::origin(programs, &folders.work)?;
    let contest = match trial {
        "lua" => lua(bench, origin.port),
        "wasm" => wasm(bench, origin.port),
        "ext-proc" => ext_proc(bench, origin.port),
        _ => runner(bench, origin.port),
    }?;
    let mut running: Vec<(Target, Running)> = Vec::new();
    for launch in &contest.launches {
        let (gateway, _) = launch.start()?;
        let target = Target {
            label: launch.label.clone(),
            scheme: "http",
            path: SMALL.path.into(),
            keys: 0,
            authorization: String::new(),
        };
        trial::load(&SMALL, &target, &gateway, folders, 1)?;
        running.push((target, gateway));
    }
    let (rounds, seconds) = (options.rounds(), options.seconds());
    let mut results =
        Results { shape: trial.into(), title: String::new(), rounds, seconds, contenders: Vec::new() };
    for _ in 0..rounds {
        for (target, gateway) in &running {
            results
                .add(&target.label, Measure::Load(trial::load(&SMALL, target, gateway, folders, seconds)?));
        }
    }
    let table = report::load_table("configuration", &results);
    let Contest { heading, text, .. } = contest;
    let text = format!(
        "\n## {heading}\n\nSmall GET, 100 kept connections. {text}\n\n{table}\n\
         `bench extensions --only {trial}`: {rounds} rounds of {seconds} s.\n"
    );
    let errors = results.contenders.iter().flat_map(|(_, all)| all).map(Measure::errors).sum();
    kept(bench, SUITE.name, trial, text, errors)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The configurations are YAML with Lua inside; a typing error there would show only at the run.
    #[test]
    fn configurations_are_well_formed() {
        for (plugins, sections, expected) in [
            (String::new(), "", None),
            (lua_plugin(FUNCTION), "ext-plugin: { path: \"/a\" }\n", Some(FUNCTION)),
        ] {
            let text = sigma(1, 2, &plugins, sections);
            let document = sigma_schema::document::Document::parse(&text, 1 << 20).expect(&text);
            let functions = &document.value["routes"][0]["plugins"]["serverless-pre-function"]["functions"];
            let expected = expected.map(|function| format!("return function() {function} end"));
            assert_eq!(functions[0].as_str(), expected.as_deref(), "{text}");
        }
        let [filter, cluster] = envoy_processor(3);
        for text in [envoy_with(1, 2, &envoy_wasm("/a"), ""), envoy_with(1, 2, &filter, &cluster)] {
            let document = sigma_schema::document::Document::parse(&text, 1 << 20).expect(&text);
            let resources = &document.value["static_resources"];
            let manager =
                &resources["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]["http_filters"];
            assert_eq!(manager.as_array().map(Vec::len), Some(2), "{text}");
            assert_eq!(manager[1]["name"], "envoy.filters.http.router", "{text}");
            let clusters = resources["clusters"].as_array().map(Vec::len);
            assert_eq!(clusters, Some(1 + usize::from(text.contains("name: processor"))), "{text}");
        }
    }
}
