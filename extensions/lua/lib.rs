//! Code from users in Lua, as APISIX and OpenResty run it.
//!
//! | module | subject |
//! |---|---|
//! | `engine` | the Lua state of a worker: sandbox, budgets, runs |
//! | `exit_transformer` | `exit-transformer` |
//! | `ngx` | the table `ngx` |
//! | `core` | the module `apisix.core` and its relatives |
//! | `modules` | other modules that scripts require |
//! | `files` | plugins in Lua files |
//! | `filter` | scripts that change bodies |
//! | `hooks` | common parts of hooks |
//! | `loaded` | compiled texts of instances |
//! | `reference` | the reference of calls, for the documents |
//! | `reply` | the response that a script makes |
//! | `scripts` | scripts in resources, besides plugins |
//! | `state` | the Lua states of a process |
//! | `trial` | `sigma lua`: a script against one request |
//! | `serverless` | `serverless-pre-function` and `serverless-post-function` |

mod core;
mod engine;
#[path = "exit-transformer/mod.rs"]
mod exit_transformer;
mod files;
mod filter;
mod hooks;
mod loaded;
mod modules;
mod ngx;
mod reference;
mod reply;
mod scripts;
mod serverless;
mod state;
mod trial;

use sigma_plugin::Descriptor;

#[cfg(test)]
mod snippets;
#[cfg(test)]
#[path = "../../plugins/testing.rs"]
mod testing;

pub use reference::reference_markdown;

use exit_transformer::EXIT_TRANSFORMER;
use serverless::{SERVERLESS_POST_FUNCTION, SERVERLESS_PRE_FUNCTION};

/// The plugins of this group, in the order of their names.
pub static ROSTER: &[&Descriptor] = &[&EXIT_TRANSFORMER, &SERVERLESS_POST_FUNCTION, &SERVERLESS_PRE_FUNCTION];
