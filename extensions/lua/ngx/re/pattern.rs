//! Compiled patterns, their flags, limits and errors.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::rc::Rc;

use pcre2::bytes::{CaptureLocations, Regex, RegexBuilder};

use crate::engine::host::Host;

/// The most patterns that a worker keeps: twice so many.
const GENERATION: usize = 256;

/// The longest pattern that is kept.
const MOST_KEPT: usize = 4096;

/// The most memory of one match, in KiB.
const HEAP: u32 = 32768;

/// Limits of steps, with the longest subject that each is for. PCRE counts the steps for each place where a match may
/// begin, so that the whole search is limited by both.
const STEPS: [(usize, u32); 5] =
    [(50, 1_000_000), (500, 100_000), (5_000, 10_000), (50_000, 1_000), (usize::MAX, 100)];

/// The text of an error that a function returns.
pub(super) struct Failure(pub(super) String);

/// A pattern, compiled for each limit when it is needed.
pub(super) struct Pattern {
    builder: RegexBuilder,
    flags: Flags,
    verbs: String,
    body: String,
    first: Regex,
    others: [OnceCell<Regex>; STEPS.len()],
    /// Matches at the place where the search begins alone.
    at_place: OnceCell<Regex>,
}

/// The flags of a pattern that matter after it is compiled.
#[derive(Debug, Clone, Copy, Default)]
struct Flags {
    is_anchored: bool,
    is_extended: bool,
    is_utf: bool,
    repeats_names: bool,
}

impl Flags {
    /// Reads the letters.
    ///
    /// # Errors
    /// Returns the text of a Lua error for an unknown one.
    fn parse(letters: &[u8], builder: &mut RegexBuilder) -> Result<Flags, String> {
        let mut flags = Flags::default();
        for letter in letters {
            match letter {
                // All patterns are kept; none is compiled to machine code; what `d` and `J` change is rare syntax.
                b'o' | b'j' | b'd' | b'J' => {}
                b'i' => {
                    builder.caseless(true);
                }
                b's' => {
                    builder.dotall(true);
                }
                b'm' => {
                    builder.multi_line(true);
                }
                b'x' => flags.is_extended = true,
                b'u' | b'U' => flags.is_utf = true,
                b'a' => flags.is_anchored = true,
                b'D' => flags.repeats_names = true,
                other => {
                    let letters = String::from_utf8_lossy(letters);
                    return Err(format!("unknown flag \"{}\" (flags \"{letters}\")", char::from(*other)));
                }
            }
        }
        builder.extended(flags.is_extended).utf(flags.is_utf);
        Ok(flags)
    }

    /// The text before the pattern, but for its verbs.
    fn before(self, steps: u32, is_at_place: bool) -> (String, String) {
        let names = if self.repeats_names { "(?J)" } else { "" };
        let place = if is_at_place { "\\G(?:" } else { "" };
        (format!("(*LIMIT_MATCH={steps})(*LIMIT_HEAP={HEAP})"), format!("{names}{place}"))
    }

    /// The text after the pattern.
    fn after(self, is_at_place: bool) -> &'static str {
        match (is_at_place, self.is_extended) {
            (false, _) => "",
            (true, false) => ")",
            // A comment at the end of the pattern ends with its line.
            (true, true) => "\n)",
        }
    }
}

impl Pattern {
    /// Compiles a pattern.
    ///
    /// # Errors
    /// Returns the text of a Lua error for an unknown flag, and a failure for a wrong pattern.
    fn new(text: &[u8], letters: &[u8]) -> Result<Result<Pattern, Failure>, String> {
        let mut builder = RegexBuilder::new();
        let flags = Flags::parse(letters, &mut builder)?;
        let text = as_text(text);
        let (verbs, body) = split_verbs(&text);
        let (limits, start) = flags.before(STEPS[0].1, flags.is_anchored);
        let whole = format!("{limits}{verbs}{start}{body}{}", flags.after(flags.is_anchored));
        match builder.build(&whole) {
            Ok(first) => Ok(Ok(Pattern {
                builder,
                flags,
                verbs: verbs.to_owned(),
                body: body.to_owned(),
                first,
                others: Default::default(),
                at_place: OnceCell::new(),
            })),
            Err(error) => Ok(Err(compile_failure(&error, &text, limits.len() + start.len()))),
        }
    }

    /// Compiles it again, with other limits.
    fn again(&self, steps: u32, is_at_place: bool) -> Regex {
        let (limits, start) = self.flags.before(steps, is_at_place);
        let Pattern { verbs, body, .. } = self;
        let whole = format!("{limits}{verbs}{start}{body}{}", self.flags.after(is_at_place));
        // A pattern that compiled before compiles again, unless a comment takes the closing parenthesis.
        self.builder.build(&whole).unwrap_or_else(|_| self.first.clone())
    }

    /// Searches from this byte on.
    ///
    /// # Errors
    /// Returns the text of a Lua error where the script has no time left.
    pub(super) fn run(&self, host: &Host, subject: &[u8], from: usize) -> Result<CaptureResult, String> {
        host.check_time()?;
        if from > subject.len() {
            return Ok(Ok(None));
        }
        let length = subject.len() - from;
        let class = if self.flags.is_anchored {
            0
        } else {
            STEPS.iter().position(|(most, _)| length <= *most).unwrap_or(STEPS.len() - 1)
        };
        let regex = match class {
            0 => &self.first,
            class => self.others[class].get_or_init(|| self.again(STEPS[class].1, false)),
        };
        match search(regex, subject, from) {
            Err(MATCH_LIMIT) if class > 0 => self.run_slowly(host, subject, from),
            result => Ok(found(result)),
        }
    }

    /// Searches place by place, each within the largest limit, as long as the script has time.
    fn run_slowly(&self, host: &Host, subject: &[u8], from: usize) -> Result<CaptureResult, String> {
        let regex = self.at_place.get_or_init(|| self.again(STEPS[0].1, true));
        let mut place = from;
        while place <= subject.len() {
            host.check_time()?;
            match search(regex, subject, place) {
                Ok(None) => place = self.after(subject, place),
                result => return Ok(found(result)),
            }
        }
        Ok(Ok(None))
    }

    /// The byte after an empty match: the next one, in UTF-8 the next character.
    pub(super) fn after(&self, subject: &[u8], end: usize) -> usize {
        let mut next = end + 1;
        while self.flags.is_utf && subject.get(next).is_some_and(|byte| byte & 0xc0 == 0x80) {
            next += 1;
        }
        next
    }

    /// The number of groups.
    pub(super) fn groups(&self) -> usize {
        self.first.captures_len().saturating_sub(1)
    }

    /// Groups with names.
    pub(super) fn names(&self) -> impl Iterator<Item = (usize, &str)> {
        let names = self.first.capture_names().iter().enumerate();
        names.filter_map(|(group, name)| name.as_deref().map(|name| (group, name)))
    }

    /// Whether several groups may have one name: then the values of a name are a list.
    pub(super) fn repeats_names(&self) -> bool {
        self.flags.repeats_names
    }
}

/// The result of a search.
type CaptureResult = Result<Option<CaptureLocations>, Failure>;

/// PCRE's number for a match that took too many steps.
const MATCH_LIMIT: i32 = -47;

fn search(regex: &Regex, subject: &[u8], from: usize) -> Result<Option<CaptureLocations>, i32> {
    // The memory of one match is given back with it, so that patterns which are kept hold none.
    let mut captures = regex.capture_locations();
    match regex.captures_read_at(&mut captures, subject, from) {
        Ok(found) => Ok(found.is_some().then_some(captures)),
        Err(error) => Err(error.code()),
    }
}

fn found(result: Result<Option<CaptureLocations>, i32>) -> CaptureResult {
    result.map_err(|code| Failure(format!("pcre_exec() failed: {}", exec_code(code))))
}

/// A pattern as text: without UTF-8, bytes are written as digits.
fn as_text(pattern: &[u8]) -> String {
    match std::str::from_utf8(pattern) {
        Ok(text) => text.to_owned(),
        Err(_) => pattern
            .iter()
            .map(
                |byte| if byte.is_ascii() { char::from(*byte).to_string() } else { format!("\\x{byte:02x}") },
            )
            .collect(),
    }
}

/// Verbs that are for the whole pattern, such as `(*ANYCRLF)`, and the rest.
fn split_verbs(pattern: &str) -> (&str, &str) {
    let mut end = 0;
    while let Some(rest) = pattern[end..].strip_prefix("(*") {
        let name = rest.split_once(')').map_or("", |(name, _)| name);
        let is_global = ["UTF", "UCP", "LIMIT_", "NO_", "NOTEMPTY", "BSR_", "CR", "LF", "ANY", "NUL"]
            .iter()
            .any(|start| name.starts_with(start));
        if !is_global {
            break;
        }
        end += 2 + name.len() + 1;
    }
    pattern.split_at(end)
}

/// The message of nginx for a pattern that does not compile.
fn compile_failure(error: &pcre2::Error, pattern: &str, added: usize) -> Failure {
    let offset = error.offset().unwrap_or_default().saturating_sub(added).min(pattern.len());
    let reason = compile_reason(error);
    let rest = pattern.get(offset..).unwrap_or_default();
    Failure(match rest {
        "" => format!("pcre_compile() failed: {reason} in \"{pattern}\""),
        rest => format!("pcre_compile() failed: {reason} in \"{pattern}\" at \"{rest}\""),
    })
}

/// The reason in the words of PCRE 8, which scripts know from nginx.
fn compile_reason(error: &pcre2::Error) -> String {
    let known = match error.code() - 100 {
        4 => "numbers out of order in {} quantifier",
        5 => "number too big in {} quantifier",
        6 => "missing terminating ] for character class",
        7 => "invalid escape sequence in character class",
        8 => "range out of order in character class",
        9 => "nothing to repeat",
        11 | 12 => "unrecognized character after (? or (?-",
        14 => "missing )",
        15 => "reference to non-existent subpattern",
        18 => "missing ) after comment",
        22 => "unmatched parentheses",
        24 => "unrecognized character after (?<",
        25 => "lookbehind assertion is not fixed length",
        43 => "two named subpatterns have the same name",
        _ => {
            let text = error.to_string();
            return text.rsplit_once(": ").map_or(text.clone(), |(_, reason)| reason.to_owned());
        }
    };
    known.to_owned()
}

/// The number that PCRE 8 has for an error of a match.
fn exec_code(code: i32) -> i32 {
    match code {
        // The subject is no UTF-8.
        -23..=-3 => -10,
        -36 => -11,
        // Limits: steps, depth, memory.
        MATCH_LIMIT => -8,
        -53 | -63 => -21,
        other => other,
    }
}

/// Compiled patterns by text and flags, in two generations: unused patterns of the older one are dropped.
#[derive(Default)]
pub(super) struct Cache {
    young: HashMap<Vec<u8>, Rc<Pattern>>,
    old: HashMap<Vec<u8>, Rc<Pattern>>,
}

impl Cache {
    /// The compiled pattern.
    ///
    /// # Errors
    /// As [`Pattern::new`].
    pub(super) fn get(&mut self, text: &[u8], flags: &[u8]) -> Result<Result<Rc<Pattern>, Failure>, String> {
        let key = [flags, b"/", text].concat();
        if let Some(known) = self.young.get(&key) {
            return Ok(Ok(Rc::clone(known)));
        }
        let pattern = match self.old.remove(&key) {
            Some(known) => known,
            None => match Pattern::new(text, flags)? {
                Ok(made) => Rc::new(made),
                Err(failure) => return Ok(Err(failure)),
            },
        };
        if key.len() <= MOST_KEPT {
            if self.young.len() >= GENERATION {
                self.old = std::mem::take(&mut self.young);
            }
            self.young.insert(key, Rc::clone(&pattern));
        }
        Ok(Ok(pattern))
    }
}

#[cfg(test)]
mod tests {
    use super::{Cache, GENERATION};

    #[test]
    fn patterns_in_use_stay_and_others_go() {
        let mut cache = Cache::default();
        for index in 0..GENERATION * 4 {
            assert!(cache.get(b"kept", b"").unwrap().is_ok());
            assert!(cache.get(index.to_string().as_bytes(), b"").unwrap().is_ok());
            assert!(cache.young.len() + cache.old.len() <= GENERATION * 2);
        }
        assert!(cache.young.contains_key(&b"/kept"[..]) || cache.old.contains_key(&b"/kept"[..]));
        assert!(!cache.young.contains_key(&b"/0"[..]) && !cache.old.contains_key(&b"/0"[..]));
    }
}
