//! The cost of users' code: a Lua function in Sigma and in Debian's nginx with its Lua module, and both without one.

use std::path::Path;

use super::{Outcome, Suite, kept, kept_sections};
use crate::bench::contender::nginx_with_lua;
use crate::bench::launch::{Launch, Running, Workplace};
use crate::bench::process::free_port;
use crate::bench::shape::SMALL;
use crate::bench::trial::{self, Measure, Results, Target};
use crate::bench::{Bench, Folders, process, report};

pub(super) const SUITE: Suite = Suite {
    name: "extensions",
    peers: &["nginx"],
    tools: &["wrk", DEBIANS_NGINX, LUA_MODULE],
    trials,
    measure,
    report: |folders: &Folders| kept_sections(folders, SUITE.name, &TRIALS),
    publish: report::write,
};

/// The nginx that Debian's module is for, wherever another one is in `PATH`.
const DEBIANS_NGINX: &str = "/usr/sbin/nginx";
const LUA_MODULE: &str = "/usr/lib/nginx/modules/ngx_http_lua_module.so";

/// A function that sets a request field from a variable.
const TRIALS: [&str; 1] = ["lua"];

/// The function: the same text for both.
const FUNCTION: &str = r#"ngx.req.set_header("X-Client", ngx.var.remote_addr)"#;

fn trials() -> Vec<&'static str> {
    TRIALS.to_vec()
}

fn sigma(port: u16, origin: u16, function: Option<&str>) -> String {
    let plugins = function.map_or_else(String::new, |function| {
        let text = format!("return function() {function} end");
        format!(", plugins: {{ serverless-pre-function: {{ functions: [ {text:?} ] }} }}")
    });
    format!(
        "workers: 1\n\
         listeners: [ {{ address: \"127.0.0.1:{port}\" }} ]\n\
         access_log: \"off\"\n\
         upstreams: [ {{ id: \"1\", type: roundrobin, nodes: {{ \"127.0.0.1:{origin}\": 1 }} }} ]\n\
         routes: [ {{ id: \"1\", uri: \"/*\", upstream_id: \"1\"{plugins} }} ]\n"
    )
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

fn measure(bench: &Bench<'_>, trial: &str) -> anyhow::Result<Outcome> {
    let Bench { options, folders, programs } = bench;
    let origin = process::origin(programs, &folders.work)?;
    let mut launches = Vec::new();
    for (label, function) in [("no function", None), ("a function", Some(FUNCTION))] {
        let port = free_port()?;
        let text = sigma(port, origin.port, function);
        launches.push(Launch::sigma(programs, &folders.work, label, port, &text)?);
    }
    if options.peers.iter().any(|peer| peer == "nginx") {
        for (label, function) in [("nginx, no function", ""), ("nginx, a function", FUNCTION)] {
            launches.push(nginx(&folders.work, label, origin.port, function)?);
        }
    }
    let mut running: Vec<(Target, Running)> = Vec::new();
    for launch in &launches {
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
    let text = format!(
        "\n## a function in Lua\n\nSmall GET, 100 kept connections. The function sets a request field to the address of \
         the client, in Sigma as `serverless-pre-function`, in Debian's nginx as `access_by_lua_block`.\n\n{table}\n\
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
        for function in [None, Some(FUNCTION)] {
            let text = sigma(1, 2, function);
            let document = sigma_schema::document::Document::parse(&text, 1 << 20).expect(&text);
            let functions = &document.value["routes"][0]["plugins"]["serverless-pre-function"]["functions"];
            let expected = function.map(|function| format!("return function() {function} end"));
            assert_eq!(functions[0].as_str(), expected.as_deref(), "{text}");
        }
    }
}
