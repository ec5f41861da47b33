//! `sigma import` without the rest of the program, for the judge of conversions: builds in seconds.
//!
//! `import import FORMAT FILE… -o FILE [--report json] [--probe FILE]`

use std::process::ExitCode;

use sigma_convert::import::source::{DiskFiles, Files as _, Input, SourceFile};
use sigma_convert::import::{Format, import, probe, yaml};

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<ExitCode, String> {
    let mut args = std::env::args().skip(2);
    let word = args.next().ok_or("name a format")?;
    let format = Format::ALL.into_iter().find(|format| format.word() == word).ok_or("unknown format")?;
    let (mut files, mut output, mut probes, mut as_json) = (Vec::new(), None, None, false);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--help" => return Ok(ExitCode::SUCCESS),
            "-o" => output = args.next(),
            "--probe" => probes = args.next(),
            "--report" => as_json = args.next().as_deref() == Some("json"),
            "--accept-gaps" => {}
            _ => files.push(SourceFile { text: DiskFiles.read(&arg)?, name: arg }),
        }
    }
    let input = Input { files: &files, access: &DiskFiles };
    let imported = import(format, &input)
        .map_err(|problems| problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))?;
    let origin = files.first().map_or("", |file| file.name.as_str());
    let text = yaml::text(&imported.document, origin, format.word())?;
    let write = |path: String, text: String| std::fs::write(path, text).map_err(|error| error.to_string());
    let report = if as_json { imported.report.json().to_string() } else { imported.report.text() };
    if let Some(path) = probes {
        write(path, probe::json(&imported.probes).to_string())?;
    }
    match output {
        Some(path) => {
            println!("{report}");
            write(path, text)?;
        }
        None => println!("{text}\n{report}"),
    }
    Ok(ExitCode::from(if imported.report.has_open_guards() { 2 } else { 0 }))
}
