//! The commands.

use std::io::IsTerminal;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail};
use clap::CommandFactory;
use sigma_config::process::Mode;
use sigma_config::settings::{Limits, Settings, Workers};
use sigma_config::valid_part::ValidPart;
use sigma_config::{Config, ParseOptions};
use sigma_control::{
    AllPlugins, LIFE, Line, LoadError, Options, Origin, Parent, Renewal, Sandbox, Source, Supervisor,
    certificate_warnings, compile_only, confine, daemon, default_pid_file, harden,
};
use sigma_convert::seed::{NIUBIX_JSON, Seeds};
use sigma_net::limits::Descriptors;
use sigma_net::listen::Claim;
use sigma_plugin::{Kind, Roster};
use sigma_proxy::route::Verdict;
use sigma_proxy::{ExplainedRequest, Snapshot};
use sigma_schema::Problem;

use crate::args::{Check, Cli, Command, DEFAULT_FILE, Plugins, Routes, Run};
use crate::output::{printed, verdict};
use crate::roster::with_files;
use crate::{demo, demo_provider, errorlog, first_request, orders};

/// Exit status of `sigma routes` when no route serves the request; 1 and 2 stand for failures.
const NO_ROUTE: u8 = 3;

pub(crate) fn execute(cli: Cli) -> Result<ExitCode> {
    match cli.command {
        Command::Init(args) => crate::init::execute(args),
        Command::Import(args) => crate::import::execute(&args),
        Command::Probe(args) => crate::probe::execute(&args),
        Command::Run(args) => run(args),
        Command::Serve(args) => run_text(crate::quick::serve(&args)?),
        Command::Proxy(args) => run_text(crate::quick::proxy(&args)?),
        Command::Check(args) => check(args),
        Command::Reload(args) => orders::reload(&args),
        Command::Reopen(args) => orders::reopen(&args),
        Command::Stop(args) => orders::stop(&args),
        Command::List => crate::list::execute(),
        Command::Bare => run_text("routes: []\n".to_owned()),
        Command::Upgrade(args) => orders::upgrade(&args),
        Command::Routes(args) => routes(&args),
        Command::Explain(args) => crate::explain::execute(&args.reason),
        Command::Ctl(args) => crate::ctl::execute(args),
        Command::Lua(args) => crate::lua::execute(args),
        Command::Plugins(args) => plugins(&args),
        Command::Completions(args) => Ok(completions(args.shell)),
        Command::Man => Ok(printed(&crate::man::page(Cli::command())?)),
        Command::Version => {
            println!("sigma {}", env!("CARGO_PKG_VERSION"));
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Lists the plugins, or prints what one says of itself.
fn plugins(args: &Plugins) -> Result<ExitCode> {
    let kinds = match &args.conf {
        None => sigma_plugins::kinds(),
        Some(conf) => with_files(&Source::file(conf))?.roster.kinds().cloned().collect(),
    };
    let text = match args.name.as_deref() {
        None => {
            let width = kinds.iter().map(|kind| kind.name().len()).max().unwrap_or_default();
            let line = |kind: &Arc<dyn Kind>| {
                format!("{:width$}  {}\n", kind.name(), sigma_plugin::docs::summary(&**kind))
            };
            kinds.iter().map(line).collect()
        }
        Some(name) => {
            let found = kinds.iter().find(|kind| kind.name() == name);
            let kind = found.ok_or_else(|| anyhow!("unknown plugin [{name}]; `sigma plugins` lists them"))?;
            sigma_plugin::docs::reference(&**kind)
        }
    };
    Ok(printed(text.as_bytes()))
}

/// Prints the script with which a shell completes Sigma's command line.
fn completions(shell: clap_complete::Shell) -> ExitCode {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "sigma", &mut script);
    printed(&script)
}

/// Runs a gateway with a configuration that is not in a file.
fn run_text(text: String) -> Result<ExitCode> {
    started(|origin| serve(Source::text(text), Extras::default(), origin))
}

fn run(args: Run) -> Result<ExitCode> {
    started(|origin| run_for(args, origin))
}

/// Runs the gateway as the process that has started this one says.
fn started(run: impl FnOnce(&Origin) -> Result<ExitCode>) -> Result<ExitCode> {
    // Before anything else is opened.
    let renewal =
        Renewal::of_environment().context("cannot read the state that the previous program handed over")?;
    let origin = Origin::of_environment().context("cannot read how this process was started")?;
    if let Some(renewal) = renewal {
        return supervise_on(renewal, &origin);
    }
    let result = run(&origin);
    if let Err(error) = &result {
        origin.failed(&format!("{error:#}"));
    }
    result
}

/// The parts of a command that are not in its configuration.
#[derive(Default)]
struct Extras {
    as_niubix: bool,
    watch: bool,
    demo_origins: Vec<SocketAddr>,
    demo_provider: Option<SocketAddr>,
}

/// Runs the gateway of a file.
fn run_for(args: Run, origin: &Origin) -> Result<ExitCode> {
    let mut source = source_of(file_of(args.file, args.conf), args.options);
    source.instances = args.instance;
    source.in_background = args.in_background;
    source.skip_invalid = args.skip_invalid;
    let extras = Extras {
        as_niubix: args.as_niubix,
        watch: args.watch,
        demo_origins: args.with_demo_origin,
        demo_provider: args.with_demo_provider,
    };
    serve(source, extras, origin)
}

/// Runs the gateway for the process that has started this one.
fn serve(mut source: Source, extras: Extras, origin: &Origin) -> Result<ExitCode> {
    sigma_net::limits::prefer_small_pages();
    let conf = source.path.clone();
    let plugins = with_files(&source)?;
    let checked = source.load(&*plugins.roster)?;
    let settings = &checked.config.settings;
    if settings.pid_file.is_none() && !source.is_text() {
        source.default_pid_file = default_pid_file(&conf);
    }
    // `sigma run` is what service managers and containers start: there a niubix.json stays in the foreground.
    let stays = checked.format == Some(NIUBIX_JSON) && !extras.as_niubix;
    if source.in_background && (!settings.process.daemon || stays) {
        bail!(
            "`sigma start` needs a sigma.json; for another configuration set `process.daemon: true` and use `sigma run`"
        );
    }
    if settings.process.daemon && !stays {
        if !origin.has_starter() {
            return launch(settings, origin);
        }
        daemon::detach();
    }
    if settings.process.mode == Mode::Supervised && !origin.has_parent() {
        return supervise(settings, &source, origin);
    }
    if settings.process.working_folder.is_some() && !source.is_text() {
        // Reloads find the files all the same.
        source.path = std::path::absolute(&conf)?;
        source.companion = source.companion.map(std::path::absolute).transpose()?;
    }
    // While there is one thread.
    confine(&settings.process)?;
    let (sandbox, lines) = Sandbox::enter(&checked.config, &plugins.roster, &source, origin)?;
    let (log, _last_lines) = errorlog::start(&settings.error_log)?;
    lines.iter().for_each(Line::tell);
    sigma_net::signals::end_at_the_second().context("cannot receive signals")?;
    for warning in &checked.warnings {
        tracing::warn!("{}: {warning}", conf.display());
    }
    for problem in &plugins.files.broken {
        tracing::error!("{problem}; the plugin refuses every configuration");
    }
    if let Some(shares) = sigma_net::limits::divide_descriptors() {
        tell_of_shares(&shares, &checked.config.settings);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        start_demo_servers(&extras.demo_origins, extras.demo_provider, origin)?;
        let listeners: Vec<String> =
            checked.config.settings.listeners.iter().map(|l| l.place().to_string()).collect();
        let first = first_request::command(&checked.config);
        let options = Options { source, watch: extras.watch, plugins, sandbox };
        let supervisor = Supervisor::start(options, checked, Box::new(log), origin).await?;
        tracing::info!(target: LIFE, listeners = listeners.join(", "), "serving");
        if !extras.demo_origins.is_empty() || std::io::stdout().is_terminal() {
            let places = listeners.join(", ");
            match first {
                Some(command) => println!("sigma is serving on {places}; try:\n  {command}"),
                None => println!("sigma is serving on {places}"),
            }
        }
        supervisor.run().await?;
        Ok(ExitCode::SUCCESS)
    })
}

/// Starts the demo servers that the command line names. Within a runtime.
fn start_demo_servers(origins: &[SocketAddr], provider: Option<SocketAddr>, started: &Origin) -> Result<()> {
    // The process before an upgrade serves at the same addresses until it ends.
    let claim = if started.has_predecessor() { Claim::Further } else { Claim::First };
    for address in origins {
        demo::start(*address, claim).with_context(|| format!("cannot start the demo origin on {address}"))?;
    }
    if let Some(address) = provider {
        demo_provider::start(address, claim)
            .with_context(|| format!("cannot start the demo provider on {address}"))?;
    }
    Ok(())
}

/// Starts the gateway in the background.
fn launch(settings: &Settings, origin: &Origin) -> Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        if let Some(pid) = daemon::launch(origin, settings).await? {
            println!("sigma serves in the background, as process {pid}");
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// Runs as the parent of the gateways.
fn supervise(settings: &Settings, source: &Source, origin: &Origin) -> Result<ExitCode> {
    harden(&settings.process)?;
    // The log's thread must not get any: a signal stays pending while another program replaces this one.
    sigma_net::signals::hold_back().context("cannot receive signals")?;
    let (log, _last_lines) = errorlog::start(&settings.error_log)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let status = Parent::start(settings, source.default_pid_file.as_deref(), Box::new(log), origin)
            .await?
            .run()
            .await;
        Ok(ExitCode::from(u8::try_from(status).unwrap_or(1)))
    })
}

/// Goes on as the parent of the gateways, as another program than before.
fn supervise_on(mut renewal: Renewal, origin: &Origin) -> Result<ExitCode> {
    harden(renewal.process())?;
    // Signals are held back since before the exec.
    let outcome = renewal.take_outcome()?;
    let (log, _last_lines) = errorlog::go_on(renewal.error_log(), outcome)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let status = Parent::go_on(renewal, Box::new(log), origin)?.run().await;
        Ok(ExitCode::from(u8::try_from(status).unwrap_or(1)))
    })
}

/// Fewer clients than this are not much for a gateway, however it is set up.
const FEW_CLIENTS: u64 = 4_096;

/// Says where the descriptors of this process are fewer than the clients that it is to serve.
fn tell_of_shares(shares: &Descriptors, settings: &Settings) {
    let Descriptors { limit, clients, .. } = *shares;
    let workers = match settings.workers {
        Workers::Auto => sigma_net::limits::usable_cpus().len() as u64,
        Workers::Count(count) => count.get().into(),
    };
    let per_worker = settings.limits.connections_per_worker;
    let wanted = workers * u64::from(per_worker);
    let is_chosen = per_worker != Limits::default().connections_per_worker;
    if clients < wanted && (is_chosen || clients < FEW_CLIENTS) {
        tracing::warn!(
            "limits.connections_per_worker allows {wanted} clients, but the limit on open files ({limit}) allows only {clients}: raise LimitNOFILE of the systemd unit, or `ulimit -n`"
        );
    }
}

/// The file that a command is to use, named as an argument or as an option.
fn file_of(argument: Option<PathBuf>, option: Option<PathBuf>) -> PathBuf {
    argument.or(option).unwrap_or_else(|| DEFAULT_FILE.into())
}

/// Returns the source of a configuration and its options. Each is a file, or JSON on the command line, which begins
/// with a brace.
fn source_of(conf: PathBuf, options: Option<PathBuf>) -> Source {
    let inline = |path: &Path| {
        let text = path.to_str().filter(|text| text.trim_start().starts_with('{'));
        text.map(Arc::<str>::from)
    };
    let mut source = match inline(&conf) {
        Some(text) => Source::text(text),
        None => Source::file(&conf),
    };
    source.companion_text = options.as_deref().and_then(inline);
    if source.companion_text.is_none() {
        source.companion = options.or_else(|| companion_of(&conf));
    }
    source
}

/// The original Sigma uses the options.json next to its sigma.json.
fn companion_of(conf: &Path) -> Option<PathBuf> {
    if conf.file_name()? != "sigma.json" {
        return None;
    }
    let beside = conf.with_file_name("options.json");
    beside.exists().then_some(beside)
}

fn check(args: Check) -> Result<ExitCode> {
    let source = source_of(file_of(args.file, args.conf), args.options);
    let path = source.path.clone();
    let AllPlugins { roster: plugins, files, .. } = with_files(&source)?;
    let checked = match source.load(&*plugins) {
        Ok(_) if !files.broken.is_empty() => return Err(source.invalid(files.broken).into()),
        Ok(checked) => checked,
        Err(LoadError::Invalid { mut problems, .. }) => {
            problems.extend(files.broken);
            let mut valid_part = valid_part_of(&source, &problems, &plugins);
            let more = compile_problems(&std::mem::take(&mut valid_part.config), &plugins);
            return Err(listed(&source, problems, more, &valid_part).into());
        }
        Err(error) => return Err(error.into()),
    };
    let normalized = checked.normalized();
    let snapshot = match compile_only(&checked.config, &plugins) {
        Ok(snapshot) => snapshot,
        Err(problems) => {
            let valid_part = valid_part_of(&source, &[], &plugins);
            return Err(listed(&source, Vec::new(), problems, &valid_part).into());
        }
    };
    for warning in &checked.warnings {
        eprintln!("{}: warning: {warning}", path.display());
    }
    for warning in certificate_warnings(&snapshot, &checked.config) {
        eprintln!("{}: warning: {warning}", path.display());
    }
    if args.print {
        println!("{}", serde_json::to_string_pretty(&normalized)?);
    } else {
        println!("{}: ok", path.display());
    }
    Ok(ExitCode::SUCCESS)
}

/// The problems that compiling `config` finds.
fn compile_problems(config: &Config, plugins: &Arc<Roster>) -> Vec<Problem> {
    compile_only(config, plugins).err().unwrap_or_default()
}

/// The part of the document that its problems leave, for compiling it all the same.
fn valid_part_of(source: &Source, problems: &[Problem], plugins: &Arc<Roster>) -> ValidPart {
    let Ok(text) = std::fs::read_to_string(&source.path) else { return ValidPart::default() };
    let env = |name: &str| std::env::var(name).ok();
    let options = ParseOptions {
        env: &env,
        formats: &Seeds::default(),
        max_bytes: text.len(),
        plugins: &**plugins,
        ..ParseOptions::default()
    };
    ValidPart::read(&text, &options, problems)
}

/// Returns the problems of the document and of its compilation, as one list in the document's order.
fn listed(
    source: &Source,
    mut problems: Vec<Problem>,
    compile: Vec<Problem>,
    valid_part: &ValidPart,
) -> LoadError {
    problems.extend(compile.into_iter().map(|problem| valid_part.located(problem)));
    problems.sort_by_key(|problem| problem.line);
    source.invalid(problems)
}

fn routes(args: &Routes) -> Result<ExitCode> {
    let source = Source::file(&args.conf);
    let plugins = with_files(&source)?.roster;
    let checked = source.load(&*plugins)?;
    let settings = &checked.config.settings;
    let place = match settings.config_sources {
        Some(_) => Some("followed documents"),
        None => (settings.store.is_some() || settings.admin.is_some()).then_some("the store"),
    };
    if let Some(place) = place.filter(|_| checked.config.resources.routes.is_empty()) {
        bail!(
            "{}: the routes are in {place}, not in this file; to see which one serves this request, run: sigma ctl explain {} http://{}{}",
            args.conf.display(),
            args.method,
            args.host,
            args.path
        );
    }
    let snapshot = compile_only(&checked.config, &plugins).map_err(|problems| source.invalid(problems))?;
    let explanations = sigma_proxy::explain(&snapshot, &checked.config, &args.method, &args.host, &args.path)
        .map_err(|reason| anyhow!("no such request: {reason}"))?;
    let mut found = false;
    for (id, explanation) in explanations {
        match explanation.verdict {
            Verdict::Matched => {
                found = true;
                println!("{id}: {}", verdict(&refusers(&snapshot, &checked.config, args)));
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

/// The plugins that may refuse the request of `sigma routes`.
fn refusers(snapshot: &Snapshot, config: &Config, args: &Routes) -> Vec<String> {
    let question = ExplainedRequest {
        method: args.method.clone(),
        target: args.path.clone(),
        host: args.host.clone(),
        routes: 1,
        ..ExplainedRequest::default()
    };
    let explained = sigma_proxy::explain_live(snapshot, config, &question);
    explained.map(|explained| explained.may_be_refused_by().map(str::to_owned).collect()).unwrap_or_default()
}
