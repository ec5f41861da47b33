//! What each command does.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, anyhow};
use rustix::process::{Pid, Signal as SignalNumber, kill_process};
use sigma_control::{Fleet, Options, Source, Supervisor};
use sigma_proxy::Snapshot;
use sigma_proxy::route::Verdict;

use crate::args::{Check, Cli, Command, Routes, Run, Signal};
use crate::{demo, errorlog};

pub(crate) fn execute(cli: Cli) -> Result<ExitCode> {
    match cli.command {
        Command::Run(args) => run(args),
        Command::Check(args) => check(args),
        Command::Reload(args) => tell(&args, SignalNumber::HUP),
        Command::Stop(args) => tell(&args, SignalNumber::TERM),
        Command::Routes(args) => routes(&args),
        Command::Version => {
            println!("sigma {}", env!("CARGO_PKG_VERSION"));
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn run(args: Run) -> Result<ExitCode> {
    sigma_net::limits::prefer_small_pages();
    let mut source = Source::file(&args.conf);
    source.companion = args.options.or_else(|| companion_of(&args.conf));
    source.instances = args.instance;
    let checked = source.load()?;
    let log = errorlog::start(&checked.config.settings.error_log)?;
    for warning in &checked.warnings {
        tracing::warn!("{}: {warning}", args.conf.display());
    }
    sigma_net::limits::raise_open_files();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        if let Some(address) = args.with_demo_origin {
            demo::start(address)
                .await
                .with_context(|| format!("cannot start the demo origin on {address}"))?;
        }
        let listeners: Vec<String> =
            checked.config.settings.listeners.iter().map(|l| l.address.to_string()).collect();
        let options = Options { source, watch: args.watch };
        let supervisor = Supervisor::start(options, checked.config, Box::new(log)).await?;
        tracing::info!(listeners = listeners.join(", "), "serving");
        if args.with_demo_origin.is_some() {
            println!("sigma is serving on {}; try:", listeners.join(", "));
            println!("  curl -i http://{}/hello", listeners[0]);
        }
        supervisor.run().await;
        Ok(ExitCode::SUCCESS)
    })
}

/// The original Sigma takes the options.json beside its sigma.json.
fn companion_of(conf: &Path) -> Option<PathBuf> {
    if conf.file_name()? != "sigma.json" {
        return None;
    }
    let beside = conf.with_file_name("options.json");
    beside.exists().then_some(beside)
}

fn check(args: Check) -> Result<ExitCode> {
    // One of the two is required.
    let path = args.file.or(args.conf).ok_or_else(|| anyhow!("no file"))?;
    let mut source = Source::file(&path);
    source.companion = args.options.or_else(|| companion_of(&path));
    let checked = source.load()?;
    let normalized = checked.normalized.clone();
    Snapshot::compile(checked.config, None, &mut Fleet::default())
        .map_err(|problems| source.invalid(problems))?;
    for warning in &checked.warnings {
        eprintln!("{}: warning: {warning}", path.display());
    }
    if args.print {
        println!("{}", serde_json::to_string_pretty(&normalized)?);
    } else {
        println!("{}: ok", path.display());
    }
    Ok(ExitCode::SUCCESS)
}

fn tell(args: &Signal, signal: SignalNumber) -> Result<ExitCode> {
    let pid = match (args.pid, &args.pid_file, &args.conf) {
        (Some(pid), _, _) => pid,
        (None, Some(file), _) => read_pid(file)?,
        (None, None, Some(conf)) => {
            let checked = Source::file(conf).load()?;
            let file = checked.config.settings.pid_file;
            read_pid(&file.ok_or_else(|| {
                anyhow!("{}: no `pid_file` is set; name the process with --pid", conf.display())
            })?)?
        }
        (None, None, None) => return Err(anyhow!("name the process with --pid, --pid-file or -c")),
    };
    let pid = Pid::from_raw(pid).filter(|_| pid > 0).ok_or_else(|| anyhow!("{pid} is no process id"))?;
    kill_process(pid, signal).with_context(|| format!("cannot signal process {}", pid.as_raw_nonzero()))?;
    Ok(ExitCode::SUCCESS)
}

fn read_pid(file: &Path) -> Result<i32> {
    let text = std::fs::read_to_string(file)
        .with_context(|| format!("cannot read the pid file {}", file.display()))?;
    text.trim().parse().with_context(|| format!("the pid file {} holds no number", file.display()))
}

fn routes(args: &Routes) -> Result<ExitCode> {
    let source = Source::file(&args.conf);
    let checked = source.load()?;
    let snapshot = Snapshot::compile(checked.config, None, &mut Fleet::default())
        .map_err(|problems| source.invalid(problems))?;
    let explanations = sigma_proxy::explain(&snapshot, &args.method, &args.host, &args.path)
        .map_err(|reason| anyhow!("no such request: {reason}"))?;
    let mut found = false;
    for (id, explanation) in explanations {
        match explanation.verdict {
            Verdict::Matched => {
                found = true;
                println!("{id}: serves this request");
            }
            Verdict::Rejected(reason) => println!("{id}: no: {reason}"),
        }
    }
    if !found {
        println!("no route serves this request: 404");
    }
    Ok(ExitCode::SUCCESS)
}
