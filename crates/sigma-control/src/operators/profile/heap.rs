//! Allocations by call stack, and the memory that stays in use.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use sigma_net::allocations::{Allocations, Amount, DISTANCES, Sampler};

use super::modules::Modules;
use super::{Form, MOST_SECONDS, READING, RefusedCall, Report, Stack, name, number};

/// Bytes between two samples, as Go's and tcmalloc's have it.
const DISTANCE: u32 = 512 << 10;
/// The innermost calls of a stack in which the allocator's own calls are searched.
const OWN_CALLS: usize = 16;

/// Which allocations lines and pictures tell of, and viewers show first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Of {
    InUse,
    Allocated,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct HeapProfileRequest {
    seconds: u32,
    bytes: u32,
    of: Of,
    pub(super) form: Form,
}

impl HeapProfileRequest {
    /// None if figures are requested: by name, or by asking for nothing, as it was before there were profiles.
    pub(super) fn read(arguments: &[(String, String)]) -> Result<Option<HeapProfileRequest>, String> {
        let mut wish = HeapProfileRequest { seconds: 10, bytes: DISTANCE, of: Of::InUse, form: Form::Pprof };
        let mut is_figures = arguments.is_empty();
        for (name, value) in arguments {
            match (name.as_str(), value.as_str()) {
                ("seconds", _) => wish.seconds = number(name, value, 1..=MOST_SECONDS)?,
                ("bytes", _) => wish.bytes = number(name, value, DISTANCES)?,
                ("of", "in_use") => wish.of = Of::InUse,
                ("of", "allocated") => wish.of = Of::Allocated,
                ("of", _) => return Err(format!("invalid argument of: {value} is not in_use or allocated")),
                ("format", "figures") => is_figures = true,
                ("format", _) => {
                    wish.form = Form::named(value).ok_or_else(|| {
                        format!("invalid argument format: {value} is not pprof, folded, svg or figures")
                    })?;
                }
                _ => return Err(format!("unknown argument {name}: write seconds, bytes, of or format")),
            }
        }
        if is_figures && arguments.len() > 1 {
            return Err("invalid argument format: figures takes no seconds and no other argument".to_owned());
        }
        Ok((!is_figures).then_some(wish))
    }
}

pub(super) fn refused(error: io::Error) -> RefusedCall {
    let reason = match error.kind() {
        io::ErrorKind::Unsupported => "this build has an allocator that cannot sample allocations",
        io::ErrorKind::ResourceBusy => "allocations are already being sampled",
        _ => "cannot read the memory map of this process",
    };
    RefusedCall::new(StatusCode::SERVICE_UNAVAILABLE, format!("{reason}: {error}"))
}

/// Takes a profile, on a dedicated thread.
pub(super) fn take(wish: HeapProfileRequest, goes_on: &AtomicBool) -> io::Result<Vec<u8>> {
    let sampler = Sampler::start(wish.bytes, fastrand::u64(..))?;
    let (begun, time) = (Instant::now(), Duration::from_secs(wish.seconds.into()));
    while goes_on.load(Ordering::Relaxed) && begun.elapsed() < time {
        std::thread::sleep(READING.min(time.saturating_sub(begun.elapsed())));
    }
    let took = begun.elapsed();
    let found = sampler.end();
    // Afterwards, so that it is not part of the profile.
    let modules = Modules::of_this_process()?;
    Ok(report(&found, &modules, wish, took).render(&modules, wish.form))
}

fn report(found: &Allocations, modules: &Modules, wish: HeapProfileRequest, took: Duration) -> Report {
    let whole = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let values = |amount: Amount| [whole(amount.objects), whole(amount.bytes)];
    let stack = |stack: &sigma_net::allocations::Stack| {
        // Within the call, not behind it.
        let calls: Vec<u64> = stack.calls.iter().map(|call| call.saturating_sub(1)).collect();
        let innermost = &calls[..calls.len().min(OWN_CALLS)];
        let own = innermost.iter().rposition(|call| is_allocators(&name(modules, *call)));
        Stack {
            thread: None,
            calls: calls[own.map_or(0, |last| last + 1)..].to_vec(),
            values: [values(stack.allocated), values(stack.in_use)].concat(),
        }
    };
    let (first, what) = match wish.of {
        Of::InUse => (3, "in use"),
        Of::Allocated => (1, "allocated"),
    };
    Report {
        counted: &[
            ("alloc_objects", "count"),
            ("alloc_space", "bytes"),
            ("inuse_objects", "count"),
            ("inuse_space", "bytes"),
        ],
        first,
        told: first,
        unit: "bytes",
        period_of: ("space", "bytes"),
        period: wish.bytes.into(),
        took,
        title: format!("Bytes {what}: {} seconds, a sample in {} bytes", took.as_secs(), wish.bytes),
        notes: notes(found),
        stacks: found.stacks.iter().map(stack).collect(),
    }
}

/// Whether a function belongs to the way into the allocator, which is the same for all.
fn is_allocators(name: &str) -> bool {
    ["sigma_net::allocations::", "__rust_alloc", "__rust_realloc"].iter().any(|part| name.contains(part))
        || ["alloc::alloc::", "<alloc::alloc::"].iter().any(|start| name.starts_with(start))
}

fn notes(found: &Allocations) -> Vec<String> {
    let mut notes =
        vec!["memory in use: allocated during the profile and not freed before its end".to_owned()];
    let (without_stack, not_followed) = (found.without_stack, found.not_followed);
    if without_stack.samples > 0 {
        notes.push(format!(
            "{} samples of some {} bytes are missing: there were more stacks than there is room for",
            without_stack.samples, without_stack.bytes
        ));
    }
    if not_followed.samples > 0 {
        notes.push(format!(
            "{} samples of some {} bytes are missing in the memory in use: there were more than can be followed",
            not_followed.samples, not_followed.bytes
        ));
    }
    notes
}

#[cfg(test)]
mod tests {
    use prost::Message as _;
    use sigma_net::allocations::Untold;

    use super::super::pprof::Profile;
    use super::super::tests::arguments;
    use super::*;

    const USUAL: HeapProfileRequest =
        HeapProfileRequest { seconds: 10, bytes: DISTANCE, of: Of::InUse, form: Form::Pprof };

    #[test]
    fn a_wish_is_read_within_its_bounds() {
        let check = |query: &str, expected: Result<Option<HeapProfileRequest>, &str>| {
            assert_eq!(
                HeapProfileRequest::read(&arguments(query)),
                expected.map_err(str::to_owned),
                "{query}"
            );
        };
        check("", Ok(None));
        check("format=figures", Ok(None));
        check("seconds=10", Ok(Some(USUAL)));
        check("format=pprof", Ok(Some(USUAL)));
        let other = HeapProfileRequest { seconds: 120, bytes: 64 << 20, of: Of::Allocated, form: Form::Svg };
        check("seconds=120&bytes=67108864&of=allocated&format=svg", Ok(Some(other)));
        check("of=in_use&bytes=16384", Ok(Some(HeapProfileRequest { bytes: 16 << 10, ..USUAL })));
        check("format=folded", Ok(Some(HeapProfileRequest { form: Form::Folded, ..USUAL })));
        check("seconds=0", Err("invalid argument seconds: 0 is not a number from 1 to 120"));
        check("seconds=121", Err("invalid argument seconds: 121 is not a number from 1 to 120"));
        check("bytes=16383", Err("invalid argument bytes: 16383 is not a number from 16384 to 67108864"));
        check(
            "bytes=67108865",
            Err("invalid argument bytes: 67108865 is not a number from 16384 to 67108864"),
        );
        check("of=freed", Err("invalid argument of: freed is not in_use or allocated"));
        check("format=dot", Err("invalid argument format: dot is not pprof, folded, svg or figures"));
        check("hz=99", Err("unknown argument hz: write seconds, bytes, of or format"));
        let figures = "invalid argument format: figures takes no seconds and no other argument";
        check("format=figures&seconds=1", Err(figures));
        check("bytes=16384&format=figures", Err(figures));
    }

    #[inline(never)]
    fn keeper(found: &mut Allocations, in_use: u64) {
        let code = keeper as fn(&mut Allocations, u64) as usize as u64;
        found.stacks.push(sigma_net::allocations::Stack {
            calls: vec![code + 9, 8],
            allocated: Amount { objects: 3, bytes: 3_000 },
            in_use: Amount { objects: in_use, bytes: in_use * 1_000 },
        });
    }

    fn told(found: &Allocations, wish: HeapProfileRequest) -> Vec<u8> {
        let modules = Modules::of_this_process().unwrap();
        report(found, &modules, wish, Duration::from_secs(2)).render(&modules, wish.form)
    }

    #[test]
    fn all_forms_have_the_same_content() {
        let mut found = Allocations::default();
        keeper(&mut found, 2);
        keeper(&mut found, 0);
        let text = |wish| String::from_utf8(told(&found, wish)).unwrap();
        let folded = HeapProfileRequest { form: Form::Folded, ..USUAL };
        let in_use = text(folded);
        assert!(in_use.starts_with("[unknown];") && in_use.ends_with("::keeper 2000\n"), "{in_use}");
        assert_eq!(in_use.lines().count(), 1);
        let allocated = text(HeapProfileRequest { of: Of::Allocated, ..folded });
        assert!(allocated.ends_with("::keeper 6000\n"), "{allocated}");
        let picture = text(HeapProfileRequest { form: Form::Svg, ..USUAL });
        for expected in [
            "Bytes in use: 2 seconds, a sample in 524288 bytes. memory in use: allocated during the profile",
            "keeper (2000 bytes, 100.0 %)",
        ] {
            assert!(picture.contains(expected), "{expected} in {picture}");
        }
        let profile = Profile::decode(&told(&found, USUAL)[..]).unwrap();
        let described = format!("{profile:?}");
        for word in ["alloc_objects", "alloc_space", "inuse_objects", "inuse_space", "keeper"] {
            assert!(described.contains(word), "{word} in {described}");
        }
        assert!(described.contains("value: [3, 3000, 2, 2000]"), "{described}");
        assert!(described.contains("value: [3, 3000, 0, 0]"), "{described}");
        assert!(described.contains("period: 524288"), "{described}");
    }

    #[test]
    fn missing_samples_are_noted() {
        let missing = Allocations {
            without_stack: Untold { samples: 2, bytes: 20 },
            not_followed: Untold { samples: 3, bytes: 30 },
            ..Allocations::default()
        };
        let notes = notes(&missing);
        assert_eq!(
            notes,
            [
                "memory in use: allocated during the profile and not freed before its end",
                "2 samples of some 20 bytes are missing: there were more stacks than there is room for",
                "3 samples of some 30 bytes are missing in the memory in use: there were more than can be followed",
            ]
        );
        let profile = Profile::decode(&told(&missing, USUAL)[..]).unwrap();
        assert!(format!("{profile:?}").contains("3 samples of some 30 bytes"));
    }

    #[test]
    fn the_allocators_own_calls_are_known() {
        for own in [
            "<sigma_net::allocations::Sampled<A>>::alloc_watched",
            "__rustc::__rust_alloc",
            "__rustc::__rust_alloc_zeroed",
            "__rustc::__rust_realloc",
            "alloc::alloc::exchange_malloc",
            "<alloc::alloc::Global as core::alloc::Allocator>::allocate",
        ] {
            assert!(is_allocators(own), "{own}");
        }
        for other in ["alloc::raw_vec::finish_grow", "sigma_cache::zone::Zone::keep", "[unknown]"] {
            assert!(!is_allocators(other), "{other}");
        }
    }

    /// The allocator of these tests is the system's, as it is.
    #[test]
    fn an_allocator_that_cannot_be_sampled_is_said() {
        let RefusedCall { status, message } = refused(take(USUAL, &AtomicBool::new(false)).unwrap_err());
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(message.starts_with("this build has an allocator that"), "{message}");
    }
}
