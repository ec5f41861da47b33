//! `sigma`: wiring of the command line to the control plane and the data plane.

mod args;
mod commands;
mod ctl;
mod demo;
mod demo_provider;
mod errorlog;
mod explain;
mod first_request;
mod import;
mod init;
mod list;
mod lua;
mod man;
mod orders;
mod outcome;
mod output;
mod probe;
mod quick;
mod roster;

use std::process::ExitCode;

use clap::Parser;
use sigma_net::allocator::Mimalloc;
use sigma_net::memory::{self, Allocator};

/// One allocation or two remain per request; a fast allocator keeps them out of profiles of the CPU. Profiles
/// of the heap show them, if the build has the feature `profiles`.
#[global_allocator]
static ALLOCATOR: Allocator<Mimalloc> = memory::allocator(Mimalloc);

fn main() -> ExitCode {
    let args = args::normalised(std::env::args_os(), std::path::Path::new("sigma.json").exists());
    let cli = args::Cli::parse_from(args);
    match commands::execute(cli) {
        Ok(code) => code,
        Err(error) => {
            // Errors of the libraries name their cause themselves; context of our own is one level above.
            eprintln!("{error}");
            if error.downcast_ref::<sigma_control::StartError>().is_none()
                && error.downcast_ref::<sigma_control::LoadError>().is_none()
            {
                error.chain().skip(1).for_each(|cause| eprintln!("  because: {cause}"));
            }
            ExitCode::FAILURE
        }
    }
}
