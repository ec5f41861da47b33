//! Requests that fit a router, and requests that just miss it.

use super::super::decision::{Host, Path};
use super::super::probe::{Probe, borders};
use super::entries::EntryPoint;
use super::routers::Router;

/// Maximum number of probes of one router.
const MAX_PROBES: usize = 60;

/// Adds the probes of a router.
pub(super) fn of(router: &Router, points: &[EntryPoint], probes: &mut Vec<Probe>) {
    let name = &router.named.name;
    let port = router.points.first().map_or(0, |index| points[*index].port);
    let mut own = Vec::new();
    for matching in &router.matches {
        let hosts: Vec<String> = matching.hosts.iter().map(host).collect();
        let host = hosts.first().cloned().unwrap_or_else(|| "localhost".to_owned());
        let paths: Vec<String> = match matching.paths.is_empty() {
            true => vec!["/".to_owned(), "/a?b=c".to_owned()],
            false => matching.paths.iter().flat_map(paths).collect(),
        };
        for path in &paths {
            own.push(Probe::get(format!("{name}: {path}"), &host, path));
        }
        let path = paths.first().map_or("/", String::as_str);
        for other in hosts.iter().skip(1) {
            own.push(Probe::get(format!("{name}: host {other}"), other, path));
        }
        own.push(Probe::get(format!("{name}: another host"), format!("not-{host}"), path));
        own.push(Probe::get(format!("{name}: host in capitals"), host.to_uppercase(), path));
        own.push(Probe::get(format!("{name}: host with a final dot"), format!("{host}."), path));
        own.push(Probe::get(format!("{name}: host with a port"), format!("{host}:{port}"), path));
        own.push(Probe::get(format!("{name}: doubled slash"), &host, format!("/{path}")));
        own.push(Probe::get(format!("{name}: dot segments"), &host, format!("/x/..{path}")));
        let method = matching.methods.first().map_or("POST", String::as_str);
        own.push(Probe { method: method.to_owned(), ..Probe::get(format!("{name}: {method}"), &host, path) });
    }
    own.truncate(MAX_PROBES);
    probes.extend(own.into_iter().map(|probe| Probe { port, ..probe }));
}

fn host(host: &Host) -> String {
    match host {
        Host::Exact(name) => name.clone(),
        Host::Suffix(name) => format!("a.{name}"),
        Host::Prefix(name) => format!("{name}.test"),
        Host::Regex(_) => "a.example.test".to_owned(),
    }
}

fn paths(path: &Path) -> Vec<String> {
    match path {
        Path::Exact(path) => vec![path.clone(), format!("{path}/"), format!("{path}a")],
        Path::Prefix(path) | Path::Segments(path) => {
            let mut targets = vec![path.clone(), format!("{path}?q=1")];
            targets.extend(borders(path));
            targets
        }
        Path::Regex { .. } => vec!["/".to_owned()],
    }
}
