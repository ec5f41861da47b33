//! Millions of requests, a share of them taken back, and the memory meanwhile.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};

use super::Options;
use super::chain::Chain;
use super::client::Client;

/// How often memory is looked at.
const LOOK: Duration = Duration::from_millis(500);
/// The growth in the second half that is not a leak: fluctuation of the allocator. A leak of a byte for each
/// request would be as much after ten million.
const MARGIN_KIB: u64 = 4 * 1024;
/// Some connections are closed and opened again after so many batches.
const BATCHES_OF_SOME: u64 = 500;

/// Progress of all clients.
#[derive(Default)]
struct Progress {
    asked: AtomicU64,
    answered: AtomicU64,
    taken_back: AtomicU64,
    over: AtomicBool,
}

/// Runs the clients until `requests` were sent; fails if one of them is not answered, or if a gateway's memory in the
/// second half exceeds that in the first.
pub(super) fn run(chain: &Chain, options: &Options) -> anyhow::Result<()> {
    let (progress, begin) = (Progress::default(), Instant::now());
    let peaks = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..options.connections)
            .map(|number| (number, &progress))
            .map(|(number, progress)| scope.spawn(move || ask(chain, options, number, progress)))
            .collect();
        let peaks = watch(chain, options, &progress, begin);
        progress.over.store(true, Ordering::Relaxed);
        for client in clients {
            match client.join() {
                Ok(result) => result?,
                Err(_) => bail!("a client panicked: see its message above"),
            }
        }
        peaks
    })?;
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    println!(
        "{} requests in {:.0} s: {} answered, {} taken back",
        count(&progress.asked),
        begin.elapsed().as_secs_f64(),
        count(&progress.answered),
        count(&progress.taken_back),
    );
    for (gateway, [first, second]) in chain.gateways().iter().zip(peaks) {
        println!("{} gateway: {first} KiB at most in the first half, {second} in the second", gateway.name);
        ensure!(second <= first + MARGIN_KIB, "the memory of the {} gateway grows", gateway.name);
    }
    Ok(())
}

/// One client after the other with one number, until all is queried.
fn ask(chain: &Chain, options: &Options, number: u32, progress: &Progress) -> anyhow::Result<()> {
    let result = ask_all(chain, options, number, progress);
    if result.is_err() {
        progress.over.store(true, Ordering::Relaxed);
    }
    result
}

fn ask_all(chain: &Chain, options: &Options, number: u32, progress: &Progress) -> anyhow::Result<()> {
    // One in four lives long, the others come and go.
    let batches = if number.is_multiple_of(4) { u64::MAX } else { BATCHES_OF_SOME };
    loop {
        let mut client = Client::connect(chain.first.port, options.resets_percent)?;
        let mut left = batches;
        while left > 0 && client.has_streams() {
            if progress.over.load(Ordering::Relaxed) {
                return Ok(());
            }
            left -= 1;
            let before = client.done;
            client.batch()?;
            let answered = client.done.answered - before.answered;
            let taken_back = client.done.taken_back - before.taken_back;
            progress.asked.fetch_add(answered + taken_back, Ordering::Relaxed);
            progress.answered.fetch_add(answered, Ordering::Relaxed);
            progress.taken_back.fetch_add(taken_back, Ordering::Relaxed);
        }
    }
}

/// The most memory of each gateway in each half.
fn watch(
    chain: &Chain,
    options: &Options,
    progress: &Progress,
    begin: Instant,
) -> anyhow::Result<[[u64; 2]; 2]> {
    let (mut peaks, mut told) = ([[0; 2]; 2], 0);
    loop {
        let asked = progress.asked.load(Ordering::Relaxed);
        let half = usize::from(asked > options.requests / 2);
        for (gateway, peaks) in chain.gateways().iter().zip(&mut peaks) {
            peaks[half] = gateway.memory_kib()?.max(peaks[half]);
        }
        let tenth = asked * 10 / options.requests.max(1);
        if tenth > told {
            told = tenth;
            let memory: Vec<String> = chain
                .gateways()
                .iter()
                .map(|gateway| gateway.memory_kib().unwrap_or(0).to_string())
                .collect();
            println!(
                "{asked} requests after {:.0} s, KiB: {}",
                begin.elapsed().as_secs_f64(),
                memory.join(", ")
            );
        }
        if asked >= options.requests || progress.over.load(Ordering::Relaxed) {
            return Ok(peaks);
        }
        std::thread::sleep(LOOK);
    }
}
