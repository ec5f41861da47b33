//! A build without the feature `profiles`: it refuses profiles, and shows the figures of the allocator.

use axum::http::StatusCode;

use super::control_api::NOT_BUILT;
use super::refused_call::RefusedCall;

/// Refuses profiles.
#[derive(Default)]
pub(crate) struct Profiling;

/// The media type of a profile, and its text.
pub(crate) type Profile = (&'static str, Vec<u8>);

impl Profiling {
    /// Refuses a profile of the threads.
    ///
    /// # Errors
    /// Returns the refusal, which names the feature.
    pub(crate) async fn cpu(&self, _: &[(String, String)]) -> Result<Profile, RefusedCall> {
        Err(not_built())
    }

    /// Refuses a profile of allocations. None if the figures of the allocator are requested, by name or by default.
    ///
    /// # Errors
    /// Returns the refusal, which names the feature.
    pub(crate) async fn heap(&self, arguments: &[(String, String)]) -> Result<Option<Profile>, RefusedCall> {
        let is_figures = match arguments {
            [] => true,
            [(name, value)] => name == "format" && value == "figures",
            _ => false,
        };
        if is_figures { Ok(None) } else { Err(not_built()) }
    }
}

fn not_built() -> RefusedCall {
    RefusedCall::new(StatusCode::NOT_IMPLEMENTED, NOT_BUILT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn profiles_are_refused_and_figures_are_not() {
        let asked = |text: &str| -> Vec<(String, String)> {
            form_urlencoded::parse(text.as_bytes()).into_owned().collect()
        };
        assert_eq!(Profiling.cpu(&[]).await, Err(not_built()));
        for query in ["seconds=10", "format=svg", "format=figures&seconds=1"] {
            assert_eq!(Profiling.heap(&asked(query)).await, Err(not_built()), "{query}");
        }
        for query in ["", "format=figures"] {
            assert_eq!(Profiling.heap(&asked(query)).await, Ok(None), "{query}");
        }
        assert!(NOT_BUILT.contains("the cargo feature `profiles`"));
    }
}
