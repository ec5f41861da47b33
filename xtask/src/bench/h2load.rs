//! The load generator for HTTP/2: h2load of nghttp2.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

use super::Folders;
use super::launch::Running;
use super::process::{LOAD_CORE, pinned};
use super::trial::LoadMeasure;

/// What h2load sends.
pub(super) struct Streams {
    pub(super) connections: u32,
    /// Requests open at a time on each connection.
    pub(super) each: u32,
    pub(super) url: String,
    /// Makes every request a gRPC call instead of a GET.
    pub(super) call: Option<Call>,
}

/// A unary gRPC call whose response is known.
pub(super) struct Call {
    /// File with the request's body: one length-prefixed message.
    pub(super) message: PathBuf,
    /// Bytes of the response's body. An error of gRPC has status 200 as well, but no body: that tells it from success.
    pub(super) answer_bytes: u64,
}

/// A number of requests, whatever time they take.
pub(super) struct Batch<'b> {
    pub(super) connections: u32,
    pub(super) requests: u64,
    pub(super) url: String,
    /// Further options of h2load.
    pub(super) options: &'b [String],
}

/// Sends the requests of `batch`. A response that is no success is an error.
pub(super) fn run(batch: &Batch<'_>) -> anyhow::Result<()> {
    let Batch { connections, requests, url, options } = batch;
    let mut command = vec!["h2load".to_owned(), format!("-c{connections}"), format!("-n{requests}")];
    command.extend_from_slice(options);
    command.push(url.clone());
    let output = pinned(LOAD_CORE, &command).output().context("cannot run h2load: install it")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let succeeded = requests_that(&text, " succeeded").unwrap_or(0);
    ensure!(succeeded == *requests, "{succeeded} of {requests} requests to {url} succeeded: {text}");
    Ok(())
}

/// Runs h2load against `gateway`, which `label` names in messages, for `seconds`.
pub(super) fn load(
    streams: &Streams,
    label: &str,
    gateway: &Running,
    folders: &Folders,
    seconds: u32,
) -> anyhow::Result<LoadMeasure> {
    let log = folders.work.join("h2load.log");
    // h2load adds to a log that is there.
    drop(fs::remove_file(&log));
    let command = command(streams, &log, seconds);
    let before = gateway.process.cpu();
    let output = pinned(LOAD_CORE, &command).output().context("cannot run h2load: install it")?;
    let cpu = gateway.process.cpu().saturating_sub(before);
    let text = String::from_utf8_lossy(&output.stdout);
    let summary = Summary::read(&text).with_context(|| {
        format!("h2load printed no result for {label}: {text}{}", String::from_utf8_lossy(&output.stderr))
    })?;
    let times = fs::read_to_string(&log).with_context(|| format!("h2load wrote no {}", log.display()))?;
    let (p50_micros, p99_micros) = percentiles(&times);
    let answered = match &streams.call {
        None => summary.succeeded,
        Some(call) => summary.succeeded.min(summary.data_bytes / call.answer_bytes.max(1)),
    };
    ensure!(answered > 0, "{label} answered no request");
    Ok(LoadMeasure {
        requests: answered,
        per_second: answered as f64 / summary.seconds,
        cpu_micros: cpu.as_secs_f64() * 1e6 / answered as f64,
        p50_micros,
        p99_micros,
        memory_kib: gateway.process.memory_kib(),
        errors: summary.failed + (summary.succeeded - answered),
    })
}

fn command(streams: &Streams, log: &Path, seconds: u32) -> Vec<String> {
    let mut command = vec![
        "h2load".to_owned(),
        "-t1".into(),
        format!("-c{}", streams.connections),
        format!("-m{}", streams.each),
        format!("-D{seconds}"),
        format!("--log-file={}", log.display()),
    ];
    if let Some(call) = &streams.call {
        command.push(format!("--data={}", call.message.display()));
        command.extend(["-Hcontent-type: application/grpc".into(), "-Hte: trailers".into()]);
    }
    command.push(streams.url.clone());
    command
}

/// The summary of h2load at its end.
struct Summary {
    seconds: f64,
    /// Requests responded with 2xx or 3xx.
    succeeded: u64,
    failed: u64,
    /// Bytes of the responses' bodies.
    data_bytes: u64,
}

/// How many requests ended so, by h2load's word for it.
fn requests_that(text: &str, word: &str) -> Option<u64> {
    let requests = text.lines().find_map(|line| line.strip_prefix("requests: "))?;
    requests.split(", ").find_map(|part| part.strip_suffix(word))?.trim().parse().ok()
}

impl Summary {
    fn read(text: &str) -> Option<Self> {
        let line = |start: &str| text.lines().find_map(|line| line.strip_prefix(start));
        // `finished in 2.01s, 31415.50 req/s, 1.20MB/s`; in the first millisecond the unit is another one.
        let seconds: f64 = line("finished in ")?.split_once("s,")?.0.parse().ok()?;
        // `traffic: 2.1MB (2101 ) total, 9.1KB (910) headers (space savings 95.55%), 1.3MB (1310) data`
        let data = line("traffic: ")?.rsplit_once('(')?.1;
        Some(Self {
            seconds: (seconds > 0.0).then_some(seconds)?,
            succeeded: requests_that(text, " succeeded")?,
            failed: requests_that(text, " failed")?,
            data_bytes: data.strip_suffix(") data")?.parse().ok()?,
        })
    }
}

/// Median and 99th percentile of the response times in µs in h2load's log: start, status and time, by tabs.
fn percentiles(log: &str) -> (u64, u64) {
    let time = |line: &str| line.split('\t').nth(2)?.parse().ok();
    let mut times: Vec<u64> = log.lines().filter_map(time).collect();
    times.sort_unstable();
    let at = |percent: usize| {
        let place = (times.len() * percent / 100).min(times.len().saturating_sub(1));
        times.get(place).copied().unwrap_or(0)
    };
    (at(50), at(99))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summaries_are_read_whole_or_not_at_all() {
        let check = |finished: &str, traffic: &str, expected: Option<(u64, u64, u64)>| {
            let text = format!(
                "starting benchmark...\n\n{finished}\n\
                 requests: 9 total, 10 started, 9 done, 7 succeeded, 2 failed, 1 errored, 0 timeout\n\
                 status codes: 7 2xx, 0 3xx, 1 4xx, 0 5xx\n{traffic}\n"
            );
            let summary = Summary::read(&text);
            let got = summary.map(|summary| (summary.succeeded, summary.failed, summary.data_bytes));
            assert_eq!(got, expected, "{text}");
        };
        let traffic =
            "traffic: 2.1KB (2101) total, 91B (91) headers (space savings 95.55%), 1.3KB (1310) data";
        check("finished in 2.01s, 4.50 req/s, 1.20KB/s", traffic, Some((7, 2, 1310)));
        check("finished in 0us, 0.00 req/s, 0B/s", traffic, None);
        check("finished in 2.01s, 4.50 req/s, 1.20KB/s", "", None);
    }

    #[test]
    fn percentiles_are_times_that_were_measured() {
        let check = |log: &str, expected| assert_eq!(percentiles(log), expected, "{log:?}");
        check("", (0, 0));
        check("1700000000000000\t200\t30\n1700000000000001\t200\t10\n1700000000000002\t200\t20\n", (20, 30));
    }
}
