//! What each command does.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use rustix::process::{Pid, Signal as SignalNumber, kill_process};
use sigma_config::sound::Sound;
use sigma_config::{Config, ParseOptions, Problem};
use sigma_control::{LoadError, Options, Source, Supervisor, compile_only};
use sigma_plugin::Roster;
use sigma_proxy::route::Verdict;

use crate::args::{Check, Cli, Command, Routes, Run, Signal};
use crate::{demo, errorlog};

/// Exit status of `sigma routes` when no route serves the request; 1 and 2 stand for failures.
const NO_ROUTE: u8 = 3;

pub(crate) fn execute(cli: Cli) -> Result<ExitCode> {
    match cli.command {
        Command::Run(args) => run(args),
        Command::Check(args) => check(args),
        Command::Reload(args) => tell(&args, SignalNumber::HUP),
        Command::Stop(args) => tell(&args, SignalNumber::TERM),
        Command::Routes(args) => routes(&args),
        Command::Ctl(args) => crate::ctl::execute(args),
        Command::Plugins(args) => plugins(args.name.as_deref()),
        Command::Version => {
            println!("sigma {}", env!("CARGO_PKG_VERSION"));
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// All plugins of this build.
fn roster() -> Arc<Roster> {
    Arc::new(Roster::new(sigma_plugins::ROSTER, None))
}

/// Lists the plugins, or prints what one says of itself.
fn plugins(name: Option<&str>) -> Result<ExitCode> {
    use std::io::Write;
    let mut text = String::new();
    match name {
        None => {
            let width =
                sigma_plugins::ROSTER.iter().map(|plugin| plugin.name.len()).max().unwrap_or_default();
            for plugin in sigma_plugins::ROSTER {
                text += &format!("{:width$}  {}\n", plugin.name, sigma_plugin::docs::summary(plugin));
            }
        }
        Some(name) => {
            let found = sigma_plugins::ROSTER.iter().find(|plugin| plugin.name == name);
            let plugin =
                found.ok_or_else(|| anyhow!("unknown plugin [{name}]; `sigma plugins` lists them"))?;
            text = sigma_plugin::docs::reference(plugin);
        }
    }
    // A pager that was closed early has seen enough.
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(ExitCode::SUCCESS)
}

fn run(args: Run) -> Result<ExitCode> {
    sigma_net::limits::prefer_small_pages();
    let mut source = Source::file(&args.conf);
    source.companion = args.options.or_else(|| companion_of(&args.conf));
    source.instances = args.instance;
    let checked = source.load(&*roster())?;
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
        let options = Options { source, watch: args.watch, plugins: sigma_plugins::ROSTER };
        let supervisor = Supervisor::start(options, checked, Box::new(log)).await?;
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
    let plugins = roster();
    let checked = match source.load(&*plugins) {
        Ok(checked) => checked,
        Err(LoadError::Invalid { problems, .. }) => {
            let mut sound = sound_part(&source, &problems, &plugins);
            let more = compile_problems(&std::mem::take(&mut sound.config), &plugins);
            return Err(listed(&source, problems, more, &sound).into());
        }
        Err(error) => return Err(error.into()),
    };
    let normalized = checked.normalized();
    let problems = compile_problems(&checked.config, &plugins);
    if !problems.is_empty() {
        let sound = sound_part(&source, &[], &plugins);
        return Err(listed(&source, Vec::new(), problems, &sound).into());
    }
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

/// What compiling `config` finds.
fn compile_problems(config: &Config, plugins: &Arc<Roster>) -> Vec<Problem> {
    compile_only(config, plugins).err().unwrap_or_default()
}

/// What the problems of the document leave of it, for compiling it all the same.
fn sound_part(source: &Source, problems: &[Problem], plugins: &Arc<Roster>) -> Sound {
    let Ok(text) = std::fs::read_to_string(&source.path) else { return Sound::default() };
    let env = |name: &str| std::env::var(name).ok();
    let options =
        ParseOptions { env: &env, max_bytes: text.len(), plugins: &**plugins, ..ParseOptions::default() };
    Sound::read(&text, &options, problems)
}

/// The problems of the document and those of its compilation, as one list in the document's order.
fn listed(source: &Source, mut problems: Vec<Problem>, compile: Vec<Problem>, sound: &Sound) -> LoadError {
    problems.extend(compile.into_iter().map(|problem| sound.located(problem)));
    problems.sort_by_key(|problem| problem.line);
    source.invalid(problems)
}

fn tell(args: &Signal, signal: SignalNumber) -> Result<ExitCode> {
    let pid = match (args.pid, &args.pid_file, &args.conf) {
        (Some(pid), _, _) => pid,
        (None, Some(file), _) => read_pid(file)?,
        (None, None, Some(conf)) => {
            let checked = Source::file(conf).load(&*roster())?;
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
    let plugins = roster();
    let checked = source.load(&*plugins)?;
    let snapshot = compile_only(&checked.config, &plugins).map_err(|problems| source.invalid(problems))?;
    let explanations = sigma_proxy::explain(&snapshot, &checked.config, &args.method, &args.host, &args.path)
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
        return Ok(ExitCode::from(NO_ROUTE));
    }
    Ok(ExitCode::SUCCESS)
}
