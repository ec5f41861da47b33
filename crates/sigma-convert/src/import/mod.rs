//! Converts configurations of other gateways: text → typed model → ordered decisions → Sigma's document.
//!
//! Each format has a folder with its own parser. The common middle is [`decision`]; [`build`] makes the document of
//! it, and [`report`] says what became of each source line. Two rules hold for all formats: a guard that cannot be
//! converted closes its route, and nothing is omitted without a remark.

mod apisix;
pub mod build;
mod caddy;
#[cfg(test)]
mod damaged;
pub mod decision;
mod envoy;
mod forwarding;
mod haproxy;
mod kong;
mod krakend;
mod logic;
mod nginx;
mod nodes;
pub mod probe;
mod refused;
mod remarks;
pub mod report;
pub mod source;
mod spring;
#[cfg(test)]
mod testing;
mod traefik;
pub mod tree;
mod words;
pub mod yaml;

use serde_json::Value;
use sigma_schema::problem::Problem;

use decision::Plan;
use probe::Probe;
use report::Report;
use source::{Input, SourceLine};

/// A format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// `nginx.conf`.
    Nginx,
    /// `application.yml` of Spring Cloud Gateway.
    Spring,
    /// Traefik's static and dynamic files, and labels in compose files.
    Traefik,
    /// `haproxy.cfg`.
    Haproxy,
    /// A Caddyfile.
    Caddy,
    /// Envoy's static bootstrap.
    Envoy,
    /// Kong's declarative configuration.
    Kong,
    /// `krakend.json`.
    Krakend,
    /// `config.yaml` of APISIX with its `apisix.yaml`.
    Apisix,
}

impl Format {
    /// All formats.
    pub const ALL: [Format; 9] = [
        Format::Nginx,
        Format::Spring,
        Format::Traefik,
        Format::Haproxy,
        Format::Caddy,
        Format::Envoy,
        Format::Kong,
        Format::Krakend,
        Format::Apisix,
    ];

    /// Returns the word of the command line.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Format::Nginx => "nginx",
            Format::Spring => "spring",
            Format::Traefik => "traefik",
            Format::Haproxy => "haproxy",
            Format::Caddy => "caddy",
            Format::Envoy => "envoy",
            Format::Kong => "kong",
            Format::Krakend => "krakend",
            Format::Apisix => "apisix",
        }
    }
}

/// The result of a format's converter.
#[derive(Debug, Default)]
pub struct Translated {
    /// The decisions, the settings and the other resources.
    pub plan: Plan,
    /// A remark for each line.
    pub report: Report,
    /// Requests for a comparison with the original.
    pub probes: Vec<Probe>,
}

/// A converted configuration.
#[derive(Debug)]
pub struct Import {
    /// The configuration as in a file.
    pub document: Value,
    /// A remark for each line.
    pub report: Report,
    /// Requests for a comparison with the original.
    pub probes: Vec<Probe>,
    /// The source lines of the routes, in their order.
    places: Vec<SourceLine>,
}

/// Converts files of a format.
///
/// # Errors
/// Returns the problems if the text cannot be parsed: their pointer is the name of the file.
pub fn import(format: Format, input: &Input<'_>) -> Result<Import, Vec<Problem>> {
    let Translated { mut plan, mut report, probes } = match format {
        Format::Nginx => nginx::translate(input),
        Format::Spring => spring::translate(input),
        Format::Traefik => traefik::translate(input),
        Format::Haproxy => haproxy::translate(input),
        Format::Caddy => caddy::translate(input),
        Format::Envoy => envoy::translate(input),
        Format::Kong => kong::translate(input),
        Format::Krakend => krakend::translate(input),
        Format::Apisix => apisix::translate(input),
    }?;
    forwarding::trust(format, input, &mut plan, &mut report);
    let places = plan.decisions.iter().map(|decision| decision.place).collect();
    Ok(Import { document: plan.build(), report, probes, places })
}
