//! Expressions of `vars`: no rule and no value of a variable panics, and the same input gives the same response.
//!
//! The rule is JSON up to the first zero byte; the rest is the value of every variable.

#![no_main]

use libfuzzer_sys::fuzz_target;
use sigma_schema::expr::{Expr, VarName, VarValue, Variables};

struct Everywhere<'a>(&'a [u8]);

impl Variables for Everywhere<'_> {
    fn get(&self, _: &VarName) -> Option<VarValue<'_>> {
        Some(VarValue::text(self.0))
    }
}

struct Nowhere;

impl Variables for Nowhere {
    fn get(&self, _: &VarName) -> Option<VarValue<'_>> {
        None
    }
}

fuzz_target!(|input: &[u8]| {
    let mut parts = input.splitn(2, |&byte| byte == 0);
    let (rule, value) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let Ok(rule) = serde_json::from_slice(rule) else { return };
    let Ok(expr) = Expr::parse(&rule) else { return };
    for variables in [&Everywhere(value) as &dyn Variables, &Nowhere] {
        assert_eq!(expr.eval(variables), expr.eval(variables), "{rule}");
    }
});
