//! The data plane: operations that are forbidden on a worker, and their exceptions.
//!
//! The lists stand here and not in `clippy.toml`, since that would hold tests and the control plane to
//! them too, and could not say that an exception is needed no longer.

use super::source::{Source, words};
use super::{Finding, Repository};

/// The crates whose code runs on workers.
const CRATES: [&str; 12] = [
    "crates/sigma-buffer/",
    "crates/sigma-cache/",
    "crates/sigma-http/",
    "crates/sigma-net/",
    "crates/sigma-observe/",
    "crates/sigma-plugin/",
    "crates/sigma-plugin-kit/",
    "extensions/",
    "plugins/",
    "crates/sigma-proxy/",
    "crates/sigma-upstream/",
    "crates/sigma-wire/",
];

/// Something that a worker may not do.
struct Ban {
    rule: &'static str,
    /// Words, and paths with `::`, that do it.
    names: &'static [&'static str],
    /// The alternative.
    remedy: &'static str,
    /// Files, and folders that end with `/`, where it does no harm, each with the reason.
    harmless: &'static [(&'static str, &'static str)],
}

const BANS: &[Ban] = &[
    Ban {
        rule: "no locks on workers",
        names: &["Mutex", "RwLock", "Condvar", "Barrier"],
        remedy: "a worker that waits for a lock keeps all its connections waiting: keep the value in one worker, \
                 publish it whole, or send it over a channel",
        harmless: &[
            ("crates/sigma-net/src/dial_pace.rs", "of one worker: tasks wait for it, and the worker goes on"),
            ("extensions/wasm/engine.rs", "on the control thread"),
            ("extensions/wasm/metrics.rs", "when a module defines a metric, and when they are shown"),
            ("extensions/wasm/shared_data.rs", "common to all workers: held for one operation of a module"),
            (
                "extensions/lua/engine/dictionaries/",
                "a dictionary of `ngx.shared` is common to all workers: held for one operation of a script",
            ),
            ("extensions/lua/ngx/shared.rs", "held for one operation of a script"),
            (
                "extensions/lua/files/endpoints.rs",
                "taken when files are loaded, and by the pages of operators",
            ),
            (
                "crates/sigma-plugin/src/script_counts.rs",
                "taken when a plugin with scripts is built, and when counts are shown",
            ),
            ("crates/sigma-plugin/src/runner_state.rs", "taken when the process of a runner changes"),
            (
                "crates/sigma-plugin/src/cloud.rs",
                "held while a pointer is copied, when a request to a cloud is signed",
            ),
            ("crates/sigma-net/src/quic/client_session.rs", "taken when a handshake with a node fails"),
            ("crates/sigma-net/src/quic/tokens.rs", "common to all workers: a token of a client counts once"),
            ("crates/sigma-net/src/tls/early_data.rs", "common to all workers: early data counts once"),
            ("extensions/lua/engine/pace.rs", "of one worker, and timers wait for it as tasks"),
            ("extensions/runner/scripted.rs", "only in tests"),
            ("extensions/runner/tokens.rs", "only if a worker has no valid token itself"),
            (
                "crates/sigma-cache/src/body.rs",
                "held while a pointer is moved; who waits for more waits as a task",
            ),
            (
                "crates/sigma-cache/src/single_flight.rs",
                "held while a pointer is copied, where many ask for the same",
            ),
            (
                "crates/sigma-cache/src/disk_cache/",
                "one part of a table, for one look where memory has no answer; all else is taken by threads of the disk, or held while a pointer is moved",
            ),
            (
                "crates/sigma-cache/src/zone.rs",
                "taken when an answer is kept, and where many may ask for the same: one stripe of many, for one look at a table",
            ),
            (
                "crates/sigma-proxy/src/edge/listen/loads.rs",
                "once for each accept loop of a listener with limits",
            ),
            (
                "crates/sigma-net/src/allocations/mod.rs",
                "tried and never waited for, for one allocation in many, while a profile is taken",
            ),
            (
                "crates/sigma-net/src/latest.rs",
                "taken when the control thread tells a worker of a change, and held while a few pointers are moved",
            ),
            (
                "crates/sigma-net/src/quic/neighbours.rs",
                "taken when a worker opens its socket: never for a packet",
            ),
            (
                "crates/sigma-proxy/src/edge/quic_state.rs",
                "taken when a worker opens its socket: never for a packet",
            ),
            (
                "crates/sigma-net/src/tls/identity.rs",
                "written once for each kind of listener, then only read, once for each handshake",
            ),
            (
                "crates/sigma-net/src/tls/resumption.rs",
                "written when keys are changed, hours apart, else only read, once for each handshake",
            ),
            (
                "crates/sigma-net/src/tls/inquiry.rs",
                "written when a client's certificate is seen for the first time, else only read, once for each handshake with one",
            ),
            (
                "crates/sigma-net/src/tls/staple.rs",
                "written when a responder has said something new, else only read, once for each handshake",
            ),
            (
                "crates/sigma-net/src/tls/revocation.rs",
                "written when a list of revoked certificates changes, else only read, once for each client's certificate",
            ),
            (
                "crates/sigma-plugin/src/counter.rs",
                "limits count over all workers: one shard of many is held for one addition",
            ),
            (
                "crates/sigma-plugin/src/inheritance.rs",
                "taken when a part is made, and when a process leaves its state: never per request",
            ),
            (
                "crates/sigma-plugin/src/env.rs",
                "taken when an instance is built, and at the end of the process",
            ),
            (
                "crates/sigma-plugin/src/facts.rs",
                "held while a pointer is copied, for the pages of operators",
            ),
            (
                "crates/sigma-plugin/src/traffic.rs",
                "taken for the first session of a listener on a worker; the page copies pointers under it",
            ),
            ("plugins/auth/openid-connect/questions.rs", "on the control thread"),
            ("crates/sigma-plugin-kit/src/fetched.rs", "on the control thread"),
            (
                "crates/sigma-plugin-kit/src/registry.rs",
                "taken when an instance is built or first used, and on the control thread",
            ),
            (
                "plugins/auth/upstream-auth/source.rs",
                "taken when an instance is built; the other one on the control thread",
            ),
            (
                "crates/sigma-plugin-kit/src/batch.rs",
                "taken when an instance is built, and by workers for one addition to a batch",
            ),
            ("plugins/traffic/shared/count/mod.rs", "taken when an instance is built"),
            (
                "plugins/traffic/shared/count/delayed.rs",
                "limits count over all workers: held for one addition to a table",
            ),
            (
                "plugins/log/error-log-logger/mod.rs",
                "on the thread of the log, and on the control thread when metadata change",
            ),
            ("plugins/log/file-logger/mod.rs", "taken when the writing thread is started, and when it ends"),
            ("plugins/log/google-cloud-logging/account.rs", "on the control thread"),
            ("plugins/log/loki-logger/mod.rs", "on the control thread"),
            ("crates/sigma-plugin-kit/src/kafka/", "on the control thread"),
            ("plugins/log/kafka-logger/", "on the control thread"),
            ("plugins/log/rocketmq-logger/", "on the control thread"),
            ("crates/sigma-plugin-kit/src/server.rs", "on the control thread"),
            (
                "plugins/observe/prometheus/series.rs",
                "taken when a worker meets new labels, and by the page of metrics",
            ),
            (
                "crates/sigma-plugin-kit/src/tallies.rs",
                "taken when a worker counts for a place the first time, and by the page of metrics",
            ),
            ("plugins/transform/grpc-transcode/definitions.rs", "taken when an instance is built"),
            ("plugins/traffic/kafka-proxy/consumer.rs", "on the control thread"),
            (
                "plugins/traffic/shared/hub.rs",
                "taken once by each worker, and held while its senders are copied, once for each push",
            ),
            (
                "crates/sigma-plugin-kit/src/redis/",
                "one worker's own, held while a connection is copied; who waits for one that is made waits as a task",
            ),
            (
                "plugins/observe/prometheus/shared_page.rs",
                "held while a piece is moved; who asks for a page waits as a task",
            ),
            (
                "crates/sigma-net/src/answers.rs",
                "written while a certificate is ordered; only then read, by who asks as an authority would",
            ),
            (
                "crates/sigma-upstream/src/endpoint.rs",
                "taken when endpoints change, and held while a pointer is copied",
            ),
            ("crates/sigma-upstream/src/health/", "on the control thread"),
            ("crates/sigma-upstream/src/identity.rs", "on the control thread"),
            ("crates/sigma-upstream/src/lock.rs", "how the locks of the others are taken"),
            (
                "crates/sigma-upstream/src/overload/breaker.rs",
                "taken for a failure and once for many successes, where a breaker is configured; held for additions",
            ),
            (
                "crates/sigma-upstream/src/overload/gate.rs",
                "taken by who waits for a place anyway, and held while one is put in line",
            ),
        ],
    },
    Ban {
        rule: "no shared counting on workers",
        names: &["fetch_add", "fetch_sub", "fetch_max", "fetch_update", "compare_exchange"],
        remedy: "what several workers write moves between their caches at every write: count in each worker and \
                 add up where it is read",
        harmless: &[
            ("crates/sigma-net/src/shared_file.rs", "once for a large body that is stored or forgotten"),
            ("extensions/wasm/host/metrics.rs", "metrics of modules are common to all workers"),
            (
                "crates/sigma-plugin/src/runner_state.rs",
                "a call of another process costs a thousand times as much",
            ),
            (
                "crates/sigma-plugin/src/script_counts.rs",
                "when values of scripts are dropped, and a worker ends",
            ),
            ("extensions/wasm/vm.rs", "on the control thread"),
            ("extensions/runner/tokens.rs", "only when the runner has forgotten its tokens"),
            ("extensions/lua/files/bundle.rs", "once for each file that is loaded"),
            (
                "crates/sigma-net/src/quic/ids.rs",
                "once for each connection id: the numbers of all workers differ",
            ),
            (
                "plugins/auth/basic-auth/users.rs",
                "only for a slow hash: the comparison costs a thousand times as much",
            ),
            (
                "crates/sigma-net/src/allocations/",
                "for one allocation in many, and only while a profile is taken",
            ),
            (
                "crates/sigma-cache/src/disk_cache/",
                "once for an answer that is written, and by the threads of the disk",
            ),
            ("crates/sigma-cache/src/zone.rs", "once for a stored answer, and for a purge"),
            ("crates/sigma-net/src/signals.rs", "once for each signal"),
            ("crates/sigma-observe/src/counters.rs", "by the thread of the log alone"),
            ("crates/sigma-observe/src/error_lines.rs", "once for each line that is lost"),
            ("crates/sigma-observe/src/log_buffer.rs", "by the thread of the log alone"),
            (
                "crates/sigma-plugin/src/env.rs",
                "once for each line that is lost, and when an operator asks for new log files",
            ),
            (
                "crates/sigma-plugin-kit/src/batch.rs",
                "the limit of what waits is one for all workers; to make the entry costs a hundred times as much",
            ),
            ("crates/sigma-plugin-kit/src/batch/", "the same"),
            ("plugins/traffic/limit-conn/mod.rs", "only before a request to Redis"),
            (
                "plugins/log/file-logger/mod.rs",
                "the limit of what waits is one for all workers; to make the line costs a hundred times as much",
            ),
            ("plugins/observe/prometheus/series.rs", "once for each name of a label that is refused"),
            ("crates/sigma-plugin-kit/src/log_throttle.rs", "only where a warning is due"),
            (
                "crates/sigma-proxy/src/edge/listen/loads.rs",
                "once for each new connection of a listener with limits, which hold over all workers",
            ),
            (
                "crates/sigma-proxy/src/edge/addresses.rs",
                "once for a connection, and only where connections of one address are limited over all workers",
            ),
            ("crates/sigma-upstream/src/endpoint.rs", "on the control thread"),
            (
                "crates/sigma-upstream/src/health/",
                "on the control thread; what its queue has no room for is counted on workers, once each",
            ),
            (
                "crates/sigma-upstream/src/overload/gate.rs",
                "the limit of an upstream that has one is one for all workers",
            ),
        ],
    },
    Ban {
        rule: "no clocks on workers",
        names: &["Instant::now", "SystemTime::now", "moment::exact", "wall_clock::now"],
        remedy: "time is an argument: take it from the caller, who has the worker's coarse clock",
        harmless: &[
            (
                "crates/sigma-net/src/dial_pace.rs",
                "once for each connect, which costs a hundred times as much",
            ),
            ("extensions/wasm/instance.rs", "once for each tick, for its share of the worker's time"),
            ("extensions/lua/engine/pace.rs", "once for each turn of a timer"),
            ("extensions/wasm/instances.rs", "only for an instance that did not start"),
            ("extensions/wasm/handler/pool.rs", "only for an instance that did not start"),
            (
                "extensions/lua/core/addresses.rs",
                "only for a script that asks for an identifier made of the time",
            ),
            ("extensions/lua/core/lrucache.rs", "only for a script that keeps values with an end"),
            ("extensions/runner/process.rs", "on the control thread"),
            ("crates/sigma-plugin/src/record.rs", "the course of an exchange, recorded only on request"),
            ("crates/sigma-observe/src/moment.rs", "once in the turn of a task, only on request"),
            ("crates/sigma-net/src/deadline.rs", "this is the worker's clock"),
            ("crates/sigma-net/src/wall_clock.rs", "its callers are named here"),
            (
                "crates/sigma-net/src/thread_time.rs",
                "only for scripts, whose limits are below its ticks of 50 ms",
            ),
            (
                "crates/sigma-net/src/quic/",
                "once in a turn of the driver: loss and pacing need ticks below 50 ms",
            ),
            (
                "crates/sigma-net/src/tls/resumption.rs",
                "keys are changed by time, and a handshake costs a thousand times as much",
            ),
            (
                "plugins/traffic/limit-bandwidth/mod.rs",
                "once, when the first instance is made; tests of paces make up the time of this clock",
            ),
            (
                "crates/sigma-plugin/src/system.rs",
                "plugins ask it where their answer depends on the time of day, or on finer ticks than 50 ms",
            ),
            ("crates/sigma-observe/src/log_buffer.rs", "at the end of the process"),
            (
                "crates/sigma-proxy/src/flow/mod.rs",
                "a few times for each session, whose times are shown in milliseconds",
            ),
            (
                "crates/sigma-proxy/src/flow/finish.rs",
                "only for a session that failed, to limit its log lines",
            ),
            (
                "crates/sigma-plugin/src/variables.rs",
                "only for those whose configuration names a variable of time",
            ),
            ("crates/sigma-plugin-kit/src/batch.rs", "on the control thread, and once for each entry"),
            ("crates/sigma-plugin-kit/src/kafka/", "on the control thread"),
            ("plugins/log/shared/kafka/", "on the control thread"),
            ("plugins/log/rocketmq-logger/", "on the control thread"),
            ("plugins/observe/prometheus/push/", "on the control thread"),
            ("plugins/log/log-rotate/", "in spawn_blocking"),
            ("crates/sigma-plugin-kit/src/server.rs", "on the control thread"),
            ("plugins/observe/prometheus/series.rs", "once, when the first instance is built"),
            (
                "crates/sigma-plugin-kit/src/redis/connection.rs",
                "a request to Redis costs a thousand times as much",
            ),
            ("crates/sigma-plugin-kit/src/log_throttle.rs", "only where a warning is due"),
            (
                "crates/sigma-proxy/src/exchange/",
                "only for an access log, a plugin that asks for the course, or balancing by latency",
            ),
            ("crates/sigma-proxy/src/worker/gateway.rs", "on the control thread"),
            ("crates/sigma-proxy/src/edge/refusals.rs", "only for a connection that is refused"),
            ("crates/sigma-proxy/src/worker/mod.rs", "this is the worker's clock"),
            ("crates/sigma-upstream/src/announcements.rs", "on the control thread"),
            ("crates/sigma-upstream/src/dns/", "on the control thread"),
            ("crates/sigma-upstream/src/health/checker.rs", "on the control thread"),
            ("crates/sigma-upstream/src/health/ejection.rs", "on the control thread"),
            ("crates/sigma-upstream/src/watch.rs", "on the control thread"),
        ],
    },
    Ban {
        rule: "no blocking on workers",
        names: &[
            "std::fs",
            "fs::read",
            "File",
            "OpenOptions",
            "std::net::Tcp",
            "TcpListener",
            "UdpSocket",
            "stdin",
            "stdout",
            "stderr",
            "print",
            "println",
            "eprint",
            "eprintln",
            "thread::sleep",
            "block_on",
            "std::process::Command",
        ],
        remedy: "a worker that waits for a disk, a terminal or a process keeps all its connections waiting: do it on \
                 the control thread, or in spawn_blocking and say so in this list",
        harmless: &[
            ("plugins/auth/basic-auth/users.rs", "when an instance is built"),
            ("crates/sigma-upstream/src/quic.rs", "a bind waits for nothing"),
            ("extensions/lua/files/bundle.rs", "on the control thread, or in spawn_blocking"),
            (
                "extensions/lua/files/reading.rs",
                "in spawn_blocking; for `init` and modules on the worker, once for each version of a plugin",
            ),
            ("extensions/wasm/code.rs", "on the control thread, when an instance is built"),
            ("extensions/wasm/engine.rs", "on the control thread, when the engine starts"),
            ("extensions/wasm/scenarios/", "only in tests"),
            ("extensions/lua/snippets.rs", "only in tests"),
            ("extensions/lua/trial.rs", "in a command, which has no worker"),
            ("extensions/runner/process.rs", "on the control thread"),
            ("crates/sigma-net/src/descriptors.rs", "on the control thread, and in spawn_blocking"),
            ("crates/sigma-net/src/exec.rs", "it prepares a command, which the control thread starts"),
            ("crates/sigma-net/src/listen.rs", "on the control thread, when sockets are bound"),
            ("crates/sigma-net/src/memory.rs", "on the control thread, when the start is over"),
            ("crates/sigma-proxy/src/edge/listen/fuzzing.rs", "for the fuzzer, which has no worker"),
            (
                "crates/sigma-net/src/sampling.rs",
                "in parallel with the control thread, while a profile is taken",
            ),
            ("crates/sigma-net/src/tls/connect.rs", "on the control thread, when authorities are read"),
            (
                "crates/sigma-net/src/tls/encrypted_key.rs",
                "on the control thread, when a configuration is compiled",
            ),
            ("crates/sigma-net/src/worker.rs", "this is the worker itself"),
            ("crates/sigma-observe/src/log_buffer.rs", "on the thread of the log"),
            ("crates/sigma-observe/src/log_output.rs", "on the thread of the log"),
            ("crates/sigma-observe/src/own_file.rs", "on the control thread, and on the thread of a log"),
            ("plugins/auth/authz-casbin/mod.rs", "on the control thread, when an instance is built"),
            ("plugins/log/error-log-logger/mod.rs", "on the thread that ships lines"),
            ("plugins/log/file-logger/mod.rs", "on a thread of its own"),
            ("plugins/log/log-rotate/", "in spawn_blocking"),
            ("plugins/log/google-cloud-logging/account.rs", "a file is read in spawn_blocking"),
            ("crates/sigma-plugin-kit/src/server.rs", "on the control thread"),
            ("plugins/observe/shared/agent.rs", "on the control thread"),
            ("plugins/transform/static-files/", "files are found and read in spawn_blocking"),
            (
                "crates/sigma-upstream/src/dns/",
                "on the control thread; connecting the socket sends nothing, it asks the kernel for a route",
            ),
        ],
    },
];

/// Files that may distinguish kinds of faults.
const FAULT_READERS: &[(&str, &str)] = &[
    ("crates/sigma-proxy/src/exchange/reply.rs", "it decides on the answer"),
    ("crates/sigma-proxy/src/attempt/attempts.rs", "it decides on another attempt"),
    ("crates/sigma-proxy/src/attempt/judge.rs", "it decides which faults count against a node"),
    ("crates/sigma-proxy/src/exchange/mod.rs", "a request without a route still meets the global rules"),
    ("crates/sigma-proxy/src/flow/finish.rs", "a session without a route has a log line of its own"),
];

/// Checks what ships of those crates, then that each exception is needed.
pub(super) fn check(repository: &Repository) -> Vec<Finding> {
    let shipped: Vec<&Source> = repository
        .sources
        .iter()
        .filter(|source| {
            let tops = ["extensions/", "plugins/"];
            let is_library =
                tops.iter().any(|top| source.path.starts_with(top)) || source.path.contains("/src/");
            is_library && CRATES.iter().any(|name| source.path.starts_with(name))
        })
        .collect();
    let mut findings = Vec::new();
    for ban in BANS {
        let found = |line: &str| ban.names.iter().copied().find(|name| names(line, name));
        findings.extend(broken(ban.rule, ban.remedy, ban.harmless, &shipped, found));
    }
    let remedy = "one place decides on another attempt and one on the answer: ask the fault for its side, or decide there";
    let reads = |line: &str| tells_kinds_apart(line).then_some("a kind of fault is matched");
    findings.extend(broken("faults have two readers", remedy, FAULT_READERS, &shipped, reads));
    findings
}

fn broken(
    rule: &'static str,
    remedy: &str,
    harmless: &[(&'static str, &str)],
    shipped: &[&Source],
    find: impl Fn(&str) -> Option<&'static str>,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut needed = vec![false; harmless.len()];
    for source in shipped {
        let known = harmless.iter().position(|(place, _)| is_at(&source.path, place));
        for (number, line) in source.code.iter().enumerate().filter(|&(number, _)| source.ships(number)) {
            let Some(name) = find(line) else { continue };
            match known {
                Some(known) => needed[known] = true,
                None => findings.push(Finding::at(rule, &source.path, number, format!("{name}: {remedy}"))),
            }
        }
    }
    for ((place, _), _) in harmless.iter().zip(needed).filter(|(_, needed)| !needed) {
        findings.push(Finding::new(
            rule,
            *place,
            "nothing there needs the exception any more: drop it from plane.rs",
        ));
    }
    findings
}

/// Whether the path of an exception covers the file.
fn is_at(path: &str, place: &str) -> bool {
    path == place || (place.ends_with('/') && path.starts_with(place))
}

/// Whether a line of code has this word, or a path of words.
fn names(line: &str, name: &str) -> bool {
    match name.contains("::") {
        true => line.contains(name),
        false => words(line).any(|(_, word)| word == name),
    }
}

/// Whether a pattern or a comparison on the line uses a kind of fault.
fn tells_kinds_apart(line: &str) -> bool {
    line.match_indices("FaultKind::").any(|(at, path)| {
        let before = line[..at].trim_end();
        let rest = line[at + path.len()..]
            .trim_start_matches(|next: char| next.is_ascii_alphanumeric())
            .trim_start();
        before.ends_with("==")
            || before.ends_with("!=")
            || before.ends_with('|')
            || rest.starts_with("=>")
            || rest.starts_with('|')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(path: &str, code: &str, expected: &[&str]) {
        let source = Source::new(path, code);
        let ban = &BANS[0];
        let found = |line: &str| ban.names.iter().copied().find(|name| names(line, name));
        let harmless = [("crates/sigma-proxy/src/kept/", "a reason")];
        let findings = broken(ban.rule, ban.remedy, &harmless, &[&source], found);
        let places: Vec<&str> = findings.iter().map(|finding| finding.place.as_str()).collect();
        assert_eq!(places, expected, "{path}: {code}");
    }

    #[test]
    fn banned_operations_are_found_without_an_exception() {
        check("crates/sigma-proxy/src/kept/a.rs", "static A: Mutex<u8>;", &[]);
        let unused = "crates/sigma-proxy/src/kept/";
        check(
            "crates/sigma-proxy/src/a.rs",
            "static A: Mutex<u8>;",
            &["crates/sigma-proxy/src/a.rs:1", unused],
        );
        check("crates/sigma-proxy/src/a.rs", "// Mutex\nstruct MutexLike;", &[unused]);
        check(
            "crates/sigma-proxy/src/a.rs",
            "#[cfg(test)]\nmod tests {\n  use std::sync::Mutex;\n}",
            &[unused],
        );
        check("crates/sigma-proxy/src/kept/a.rs", "fn a() {}", &[unused]);
    }

    #[test]
    fn faults_are_made_anywhere_and_compared_nowhere() {
        let check = |line: &str, expected: bool| assert_eq!(tells_kinds_apart(line), expected, "{line}");
        check("return Err(Fault::new(FaultKind::NoRoute, reason));", false);
        check("Invalid(reason) => Fault::new(FaultKind::BadRequest, reason),", false);
        check("if fault.kind == FaultKind::NoRoute {", true);
        check("FaultKind::NoRoute => 404,", true);
        check("FaultKind::NoRoute | FaultKind::NoService => 404,", true);
    }
}
