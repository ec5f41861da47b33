//! API versions of requests: the predicate `Version`, as a condition on the field or argument that has the version.

use regex::Regex;
use serde_json::{Value, json};

use super::super::words::header_variable;
use super::settings::Settings;

/// The prefixes of Spring's properties for versions.
const PREFIXES: [&str; 2] = ["spring.webflux.apiversion", "spring.mvc.apiversion"];

/// Where requests have their version.
#[derive(Debug, Clone)]
pub(super) struct VersionSource {
    /// The variable of the version.
    variable: String,
    /// The version of requests without one.
    default: Option<Version>,
}

impl VersionSource {
    /// Reads it from the properties.
    ///
    /// # Errors
    /// Returns the reason if requests have their version in another place than a field or an argument.
    pub(super) fn read(settings: &Settings<'_>) -> Result<VersionSource, String> {
        let text =
            |name: &str| PREFIXES.iter().find_map(|prefix| settings.text_at(&format!("{prefix}.{name}")));
        let variable = match (text("use.header"), text("use.query-parameter")) {
            (Some(header), None) => header_variable(&header)?,
            (None, Some(name)) if is_variable(&name) => format!("arg_{name}"),
            (None, Some(name)) => return Err(format!("The argument `{name}` cannot be a variable.")),
            (Some(_), Some(_)) => {
                return Err("Versions are read from a header and an argument; keep one of them.".to_owned());
            }
            (None, None) => {
                return Err(
                    "API versions are read by code of the application, from the path or from a media \
                            type; write a predicate `Header` or `Path` instead."
                        .to_owned(),
                );
            }
        };
        let default = text("default").map(|text| Version::parse(&text).ok_or(NO_VERSION)).transpose()?;
        Ok(VersionSource { variable, default })
    }

    /// Returns the condition for a version, or for a version and all later ones (`1.2+`).
    ///
    /// # Errors
    /// Returns the reason if the text is not a version.
    pub(super) fn condition(&self, text: &str) -> Result<Value, String> {
        let text = text.trim();
        let (text, is_baseline) = match text.strip_suffix('+') {
            Some(text) => (text, true),
            None => (text, false),
        };
        let version = Version::parse(text).ok_or(NO_VERSION)?;
        let pattern = if is_baseline { version.at_least() } else { version.equal() };
        // Spring skips everything before the first digit, such as `v`.
        let pattern = format!("^[^0-9]*(?:{pattern})$");
        let matches = json!([self.variable, "~~", pattern]);
        let serves_default = self.default.is_some_and(|default| match is_baseline {
            true => default >= version,
            false => default == version,
        });
        Ok(match serves_default {
            true => json!(["OR", matches, [self.variable, "==", null]]),
            false => matches,
        })
    }
}

const NO_VERSION: &str = "A version has up to three numbers, such as `1.2`.";

/// A semantic version; missing numbers are 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Version([u32; 3]);

impl Version {
    fn parse(text: &str) -> Option<Version> {
        let text = text.trim_start_matches(|c: char| !c.is_ascii_digit());
        let mut numbers = [0; 3];
        let parts: Vec<&str> = text.split('.').collect();
        if parts.len() > numbers.len() {
            return None;
        }
        for (number, part) in numbers.iter_mut().zip(&parts) {
            *number = part.parse().ok()?;
        }
        Some(Version(numbers))
    }

    /// A pattern of the texts that are this version.
    fn equal(self) -> String {
        let [major, minor, patch] = self.0;
        match (minor, patch) {
            (0, 0) => format!("0*{major}(?:\\.0+){{0,2}}"),
            (_, 0) => format!("0*{major}\\.0*{minor}(?:\\.0+)?"),
            _ => format!("0*{major}\\.0*{minor}\\.0*{patch}"),
        }
    }

    /// A pattern of the texts that are this version or a later one.
    fn at_least(self) -> String {
        let [major, minor, patch] = self.0;
        [
            format!("0*(?:{})(?:\\.[0-9]+){{0,2}}", greater(major)),
            format!("0*{major}\\.0*(?:{})(?:\\.[0-9]+)?", greater(minor)),
            format!("0*{major}\\.0*{minor}\\.0*(?:{})", greater(patch)),
            self.equal(),
        ]
        .join("|")
    }
}

/// A pattern of the decimal numbers above `number`, without leading zeros.
fn greater(number: u32) -> String {
    let digits = number.to_string();
    let longer = format!("[1-9][0-9]{{{},9}}", digits.len());
    let mut all = vec![longer];
    for (place, digit) in digits.char_indices().filter(|(_, digit)| *digit != '9') {
        let next = char::from(digit as u8 + 1);
        let rest = digits.len() - place - 1;
        all.push(format!("{}[{next}-9][0-9]{{{rest}}}", &digits[..place]));
    }
    all.join("|")
}

fn is_variable(name: &str) -> bool {
    Regex::new("^[A-Za-z0-9_]+$").is_ok_and(|known| known.is_match(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares the patterns with the order of versions.
    #[test]
    fn patterns_order_versions() {
        let texts = [
            "0", "1", "1.0", "1.0.0", "01.1", "1.1.0", "1.1.1", "1.2", "1.9", "1.10", "1.10.5", "1.11", "2",
            "2.0.1", "9", "9.9.9", "10", "19.1", "20", "99.99.99", "100",
        ];
        for own in texts {
            let version = Version::parse(own).unwrap();
            let equal = Regex::new(&format!("^[^0-9]*(?:{})$", version.equal())).unwrap();
            let at_least = Regex::new(&format!("^[^0-9]*(?:{})$", version.at_least())).unwrap();
            for text in texts {
                let other = Version::parse(text).unwrap();
                for text in [text.to_owned(), format!("v{text}")] {
                    assert_eq!(equal.is_match(&text), other == version, "{text} is {own}");
                    assert_eq!(at_least.is_match(&text), other >= version, "{text} at least {own}");
                }
            }
        }
        for text in ["", "x", "1.2.3.4", "1..2", "1.2-beta"] {
            assert_eq!(Version::parse(text), None, "{text}");
        }
    }
}
