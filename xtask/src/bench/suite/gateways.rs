//! Sigma compared with other gateways, all doing the same work.

use super::{Outcome, Suite};
use crate::bench::contender::{Contender, FAMILIES};
use crate::bench::shape::{self, Kind, Load, Shape};
use crate::bench::trial::{self, Measure, Results};
use crate::bench::{Bench, Folders, process, report};

pub(super) const SUITE: Suite = Suite {
    name: "gateways",
    peers: &FAMILIES,
    tools: &["wrk"],
    trials,
    measure: measure_trial,
    report: whole_report,
    publish: report::write,
};

fn trials() -> Vec<&'static str> {
    shape::all().iter().map(|shape| shape.name).collect()
}

fn measure_trial(bench: &Bench<'_>, trial: &str) -> anyhow::Result<Outcome> {
    let Some(shape) = shape::all().into_iter().find(|shape| shape.name == trial) else {
        anyhow::bail!("no shape {trial:?}")
    };
    let results = measure(bench, &shape)?;
    if !bench.options.quick {
        results.save(&bench.folders.results())?;
    }
    Ok(Outcome { section: report::section(&results), errors: results.errors_of_sigma() })
}

fn whole_report(folders: &Folders) -> anyhow::Result<String> {
    Ok(Results::load_all(&folders.results())?.iter().map(report::section).collect())
}

/// Measures all contenders of one shape, in turns.
fn measure(bench: &Bench<'_>, shape: &Shape) -> anyhow::Result<Results> {
    let Bench { options, folders, programs } = bench;
    eprintln!("{}: {}", shape.name, shape.title);
    let origin = process::origin(programs, &folders.work)?;
    let mut results = Results::new(shape, options.rounds(), options.seconds());
    let contenders: Vec<Contender> = shape
        .contenders()
        .into_iter()
        .filter(|&contender| options.wants(contender) && programs.path(contender).is_some())
        .collect();
    if let Kind::Load(load) = &shape.kind {
        measure_load(bench, load, &contenders, origin.port, &mut results)?;
        return Ok(results);
    }
    for _ in 0..options.rounds() {
        for &contender in &contenders {
            let measure = match shape.kind {
                Kind::Idle { connections } => {
                    trial::idle(connections, contender, programs, folders, origin.port)?
                }
                _ => trial::start_up(contender, programs, folders, origin.port)?,
            };
            results.add(&contender.label(), measure);
        }
    }
    Ok(results)
}

fn measure_load(
    bench: &Bench<'_>,
    load: &Load,
    contenders: &[Contender],
    origin: u16,
    results: &mut Results,
) -> anyhow::Result<()> {
    let Bench { options, folders, programs } = bench;
    let mut running = Vec::new();
    for &contender in contenders {
        let gateway = contender.start(programs, &folders.work, origin)?;
        let target = trial::Target::of(contender, load);
        trial::load(load, &target, &gateway, folders, 1)?;
        running.push((target, gateway));
    }
    for _ in 0..options.rounds() {
        for (target, gateway) in &running {
            let measure = trial::load(load, target, gateway, folders, options.seconds())?;
            results.add(&target.label, Measure::Load(measure));
        }
    }
    Ok(())
}
