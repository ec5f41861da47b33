//! The manual page, made from the definition of the command line: the text of `--help`, and more.

use std::io;

use clap::{Arg, Command};
use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, roman};

/// A section: its heading, and terms with their descriptions.
type Section = (&'static str, &'static [(&'static str, &'static str)]);

/// The sections after the commands.
const SECTIONS: [Section; 3] = [
    (
        "SIGNALS",
        &[
            (
                "SIGHUP",
                "Reload the configuration. If it has problems, the old one stays in force and the error log lists them.",
            ),
            ("SIGUSR1", "Reopen the log files, after they were renamed."),
            (
                "SIGUSR2",
                "Upgrade: start the program that is now installed, hand over the sockets, and end this process.",
            ),
            (
                "SIGTERM, SIGINT",
                "Drain: accept no new connections, let open requests finish for at most `timeouts.drain_ms`, and end. A second signal, at least one second later, ends the process at once; the exit status is then 128 plus the signal's number.",
            ),
        ],
    ),
    (
        "ENVIRONMENT",
        &[
            ("SIGMA_ADMIN", "URL of the Admin API for `sigma ctl`; `--admin` overrides it."),
            ("SIGMA_ADMIN_KEY", "Key of the Admin API; `--key` and `--key-file` override it."),
            (
                "SIGMA_ADMIN_CA, SIGMA_ADMIN_CERT, SIGMA_ADMIN_CERT_KEY",
                "PEM files: trusted authorities for the Admin API's certificate, the client certificate, and its key.",
            ),
        ],
    ),
    (
        "FILES",
        &[
            ("sigma.yaml", "Default configuration file of commands, in the current folder."),
            ("/etc/sigma/sigma.yaml", "The configuration of the service."),
            (
                "/var/lib/sigma",
                "State of the service; relative paths of its configuration begin here. Next to an embedded store, `admin.key` has the generated key of the Admin API.",
            ),
            ("/var/log/sigma", "Where the service may write logs."),
        ],
    ),
];

/// The description of the page, longer than the line in the definition.
const DESCRIPTION: &str = "`sigma run` serves a configuration: a file, or resources that the Admin API writes to a store. The other commands write, check and explain a configuration, control a running gateway, or query it.";

/// The references in the last line of the page.
const SEE_ALSO: &str = "`sigma plugins` lists the plugins, and `sigma plugins` with a name is the reference of one. Where the package is installed, /usr/share/doc/sigma/README.md names the other documents. \
`journalctl`(1), `systemctl`(1), `systemd.service`(5)";

/// The page, as roff with the macros of man(7).
///
/// # Errors
/// Returns an error if it cannot be rendered.
pub(crate) fn page(mut command: Command) -> io::Result<Vec<u8>> {
    command.build();
    let page = Man::new(command.clone()).manual("Sigma");
    let mut out = Vec::new();
    page.render_title(&mut out)?;
    let mut rest = String::new();
    rest.push_str(".SH NAME\n");
    rest.push_str(&body(|out| page.render_name_section(out))?);
    rest.push_str(".SH SYNOPSIS\n");
    rest.push_str(&body(|out| page.render_synopsis_section(out))?);
    rest.push_str(".SH DESCRIPTION\n");
    rest.push_str(&source(Roff::new().text(spans(DESCRIPTION))));
    rest.push_str(".SH OPTIONS\n");
    rest.push_str(&body(|out| page.render_options_section(out))?);
    rest.push_str(".SH COMMANDS\n");
    commands(&command, &mut rest)?;
    let (status, notes) = after(&command);
    rest.push_str(&format!(".SH \"EXIT STATUS\"\n{status}"));
    for (heading, entries) in SECTIONS {
        rest.push_str(&source(Roff::new().control("SH", [heading])));
        rest.push_str(&listed(entries.iter().copied()));
    }
    rest.push_str(&format!(".SH NOTES\n{notes}"));
    rest.push_str(&source(Roff::new().control("SH", ["SEE ALSO"]).text(spans(SEE_ALSO))));
    out.extend_from_slice(rest.as_bytes());
    Ok(out)
}

/// A section for each command that help shows, and for those below it.
fn commands(parent: &Command, out: &mut String) -> io::Result<()> {
    for command in parent.get_subcommands().filter(|one| is_documented(one)) {
        let is_known = |arg: &Arg| {
            let of_parent = |other: &Arg| other.is_global_set() && other.get_id() == arg.get_id();
            arg.get_id() == "help" || parent.get_arguments().any(of_parent)
        };
        // Options of all commands are described once, above.
        let own = command.clone().mut_args(|arg| if is_known(&arg) { arg.hide(true) } else { arg });
        let man = Man::new(own.clone());
        out.push_str(&source(Roff::new().control("SS", [name(command)])));
        out.push_str(&body(|out| man.render_synopsis_section(out))?);
        out.push_str(".PP\n");
        out.push_str(&body(|out| man.render_description_section(out))?);
        out.push_str(&body(|out| man.render_options_section(out))?);
        for line in own.get_after_help().map(ToString::to_string).unwrap_or_default().lines() {
            out.push_str(&source(Roff::new().control("PP", []).text(spans(line))));
        }
        commands(command, out)?;
    }
    Ok(())
}

/// Whether help shows it. The command `help` is what this page is.
fn is_documented(command: &Command) -> bool {
    !command.is_hide_set() && command.get_name() != "help"
}

/// Returns its full name, with its parents' names.
fn name(command: &Command) -> &str {
    command.get_bin_name().unwrap_or_else(|| command.get_name())
}

/// Returns the parts of the text after the main help: the exit status, then notes, one a line.
fn after(command: &Command) -> (String, String) {
    let text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let (mut status, mut notes) = (String::new(), String::new());
    for line in text.lines() {
        match line.strip_prefix("Exit status: ") {
            Some(line) => {
                let entries = line.trim_end_matches('.').split("; ").filter_map(|one| one.split_once(' '));
                status.push_str(&listed(entries));
            }
            None => notes.push_str(&source(Roff::new().control("PP", []).text(spans(line)))),
        }
    }
    (status, notes)
}

fn listed<'a>(entries: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    let mut roff = Roff::new();
    for (term, text) in entries {
        roff.control("TP", []).text([bold(term)]).text(spans(text));
    }
    source(&roff)
}

/// Returns a text, with the parts between backquotes in bold.
fn spans(text: &str) -> Vec<Inline> {
    let parts = text.split('`').enumerate().filter(|(_, part)| !part.is_empty());
    parts.map(|(at, part)| if at % 2 == 1 { bold(part) } else { roman(part) }).collect()
}

/// Returns a part of the page, without the first line that each begins with: the title has it.
fn source(roff: &Roff) -> String {
    without_definition(&roff.render())
}

/// The same of a section that is rendered, without its heading.
fn body(render: impl FnOnce(&mut dyn io::Write) -> io::Result<()>) -> io::Result<String> {
    let mut out = Vec::new();
    render(&mut out)?;
    let text = without_definition(&String::from_utf8_lossy(&out));
    Ok(text.split_inclusive('\n').filter(|line| !line.starts_with(".SH ")).collect())
}

fn without_definition(text: &str) -> String {
    let definition = Roff::new().render();
    text.strip_prefix(&definition).unwrap_or(text).to_owned()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::args::Cli;

    /// The commands that help shows, in the order of the page.
    fn collect(parent: &Command, out: &mut Vec<Command>) {
        for command in parent.get_subcommands().filter(|one| is_documented(one)) {
            out.push(command.clone());
            collect(command, out);
        }
    }

    fn rendered() -> String {
        String::from_utf8(page(Cli::command()).unwrap()).unwrap()
    }

    #[test]
    fn every_command_has_its_section_with_all_its_options() {
        let page = rendered();
        let (mut root, mut all) = (Cli::command(), Vec::new());
        root.build();
        collect(&root, &mut all);
        for name in ["sigma run", "sigma import openapi", "sigma ctl", "sigma ctl get"] {
            assert!(all.iter().any(|one| one.get_bin_name() == Some(name)), "{name}");
        }
        let headings: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix(".SS ")).collect();
        let names: Vec<String> =
            all.iter().map(|one| source(Roff::new().control("SS", [name(one)]))).collect();
        assert_eq!(headings, names.iter().map(|one| one[4..].trim_end()).collect::<Vec<_>>());
        for (command, heading) in all.iter().zip(&names) {
            let section = page.split_once(heading).unwrap().1;
            let section = section.split("\n.S").next().unwrap();
            let parents: Vec<&Command> =
                all.iter().filter(|one| name(command).starts_with(&format!("{} ", name(one)))).collect();
            for arg in command.get_arguments().filter(|arg| !arg.is_hide_set() && arg.get_id() != "help") {
                let is_inherited = parents.iter().any(|one| {
                    one.get_arguments().any(|of| of.is_global_set() && of.get_id() == arg.get_id())
                });
                let Some(long) = arg.get_long() else { continue };
                let option = format!(".TP\n{}", source(Roff::new().text(option(arg, long))).trim_end());
                assert_eq!(section.contains(&option), !is_inherited, "{option}: {section}");
            }
        }
    }

    /// How a list of options names one.
    fn option(arg: &Arg, long: &str) -> Vec<Inline> {
        let short = arg.get_short().map(|short| [bold(format!("-{short}")), roman(", ")]);
        short.into_iter().flatten().chain([bold(format!("--{long}"))]).collect()
    }

    #[test]
    fn the_page_has_the_sections_of_a_manual() {
        let page = rendered();
        let sections: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix(".SH ")).collect();
        assert_eq!(
            sections,
            [
                "NAME",
                "SYNOPSIS",
                "DESCRIPTION",
                "OPTIONS",
                "COMMANDS",
                "\"EXIT STATUS\"",
                "SIGNALS",
                "ENVIRONMENT",
                "FILES",
                "NOTES",
                "\"SEE ALSO\""
            ]
        );
        assert!(page.contains("\n.SH NAME\nsigma \\- "), "what `apropos` shows");
        assert_eq!(page.matches(".TH ").count(), 1);
        for status in ["0", "1", "2", "3"] {
            assert!(page.contains(&format!("\n.TP\n\\fB{status}\\fR\n")), "{status}");
        }
        // Hidden commands, and the option that every command has.
        for hidden in ["java\\-opts", "sigma help"] {
            assert!(!page.contains(hidden), "{hidden}");
        }
        assert_eq!(page.matches("\\-\\-help\\fR\n").count(), 1);
    }
}
