//! `if (!-e $request_filename)`: requests for paths without a file.

use std::rc::Rc;

use super::super::report::Verdict;
use super::conditions::words;
use super::content::HANDLERS;
use super::converter::Converter;
use super::level::Level;
use super::parse::Directive;
use super::pattern::{Pattern, StaticMatch, known_match};
use super::rewriting::Program;
use super::state::{Missing, MissingEnd, State};

impl<'a> Converter<'a> {
    /// `if (!-e $request_filename) { rewrite ^ /index.php last; }` is the end of `try_files`, and so are a `return` and a
    /// handler in its block. Requests that a rewrite matches are followed at once, the others continue.
    pub(super) fn missing(
        &mut self,
        directive: &'a Directive,
        level: &Rc<Level<'a>>,
        state: &mut State<'a>,
        program: &Program<'a>,
    ) {
        if state.files.missing.is_some() {
            let text = "only the first block for missing files was converted";
            return self.remark(directive, Verdict::NotPossible, text);
        }
        let words = words(directive);
        let tested = words.get(1).map(String::as_str).unwrap_or_default();
        let tried = match tested.strip_prefix("$document_root") {
            Some(path) if !path.is_empty() => vec![path.to_owned()],
            _ if words.first().is_some_and(|test| test == "!-f") => vec!["$uri".to_owned()],
            _ => vec!["$uri".to_owned(), "$uri/".to_owned()],
        };
        let rewrites = level.own_all(&["rewrite"]);
        for rewrite in &rewrites {
            let Ok(pattern) = Pattern::new(rewrite.arg(0), false) else {
                let text = "the expression of this rewrite is not supported; it was not converted";
                self.remark(rewrite, Verdict::NotPossible, text);
                continue;
            };
            let subject = state.uri_text();
            match known_match(&pattern, &subject) {
                StaticMatch::No => {}
                StaticMatch::Yes => {
                    let mut inner = state.clone();
                    self.captured(&pattern, &subject, &mut inner);
                    state.files.missing = Some(self.rewritten_missing(rewrite, tried, level, &inner));
                    return self.told_late(directive);
                }
                StaticMatch::Maybe => {
                    let mut inner = state.clone();
                    self.matched(&pattern, &subject, &mut inner);
                    inner.files.missing = Some(self.rewritten_missing(rewrite, tried.clone(), level, &inner));
                    self.run(program.clone(), inner);
                }
            }
        }
        let status = level.own("return").and_then(|line| line.arg(0).parse::<u16>().ok());
        if let Some(status) = status.filter(|status| (400..600).contains(status)) {
            state.files.missing = Some(Missing { tried, end: MissingEnd::Status(status) });
        } else if !level.own_all(HANDLERS).is_empty() {
            state.files.missing = Some(Missing { tried, end: MissingEnd::Handler(Rc::clone(level)) });
        } else if rewrites.is_empty() {
            let text = "only a rewrite can follow a missing file; the block was not converted";
            self.remark(directive, Verdict::NotPossible, text);
        }
        if !rewrites.is_empty() {
            self.told_late(directive);
        }
    }

    /// The path of a rewrite for a missing file.
    fn rewritten_missing(
        &mut self,
        rewrite: &'a Directive,
        tried: Vec<String>,
        level: &Rc<Level<'a>>,
        state: &State<'a>,
    ) -> Missing<'a> {
        let source = rewrite.arg(1);
        let keeps_query = !source.ends_with('?');
        let source = source.strip_suffix('?').unwrap_or(source);
        let (path, query) = source.split_once('?').unwrap_or((source, ""));
        let path = self.text(rewrite, path, state, level);
        let query = (!query.is_empty()).then(|| self.text(rewrite, query, state, level));
        let args = self.joined_args(query, keeps_query, state);
        Missing { tried, end: MissingEnd::Path(path, args) }
    }

    fn told_late(&mut self, directive: &Directive) {
        let text = "Files are looked for when no other condition applies; conditions after this block do not see them.";
        self.remark(directive, Verdict::Differs, text);
    }
}
