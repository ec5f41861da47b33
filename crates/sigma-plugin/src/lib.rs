//! The interface for authors of extensions.
//!
//! A plugin is a [`Kind`] (its name, order, phases and schema, mostly a [`Descriptor`]) and a type that implements
//! [`Plugin`] with its hooks. Its configuration is parsed once, when a configuration is compiled; the instance is
//! immutable and shared by all workers. A hook gets one exchange as a [`Context`] and its environment as an [`Env`],
//! and returns a [`Step`].
//!
//! | module | subject |
//! |---|---|
//! | [`kind`] | the interface of a plugin kind |
//! | [`descriptor`] | the description of a compiled-in plugin |
//! | [`context`] | the data of one exchange for hooks |
//! | [`runner_state`] | the state of the plugin runner |
//! | [`script_counts`] | counters of scripts |
//! | [`scripts`] | scripts of users in resources |
//! | [`step`] | results of hooks |
//! | [`env`] | the environment of hooks: counters, background work, consumers |
//! | [`chain`] | the plugins of a route in their order |
//! | [`cloud`] | credentials of the machine at clouds |
//! | [`consumer`] | consumers and their credentials |
//! | [`credentials`] | credentials that logs and traces hide |
//! | [`login`] | the result of a request's login |
//! | [`system`] | time and unpredictable bytes |
//! | [`counter`] | counters shared by all workers |
//! | [`inheritance`] | state handed over to the next process |
//! | [`body`] | filters of bodies |
//! | [`cache`] | storing and reusing responses |
//! | [`outbound`] | calling other services |
//! | [`owned`] | request fields that plugins set for nodes |
//! | [`personal`] | users whose responses must stay apart |
//! | [`pace`] | bandwidth limits |
//! | [`takeover`] | plugins that take a connection over |
//! | [`dubbo`] | calls to Dubbo providers |
//! | [`bridge`] | upstreams without HTTP |
//! | [`flow`] | plugins of TCP and UDP sessions |
//! | [`docs`] | the reference page of a plugin |
//! | [`address`] | addresses as text |
//! | [`hex`] | hexadecimal digits of ids |
//! | [`graphql`] | GraphQL documents |
//! | [`facts`] | facts about the gateway, for metrics |
//! | [`resident`] | process-wide parts of plugins |
//! | [`traffic`] | counters of open sessions by listener |

pub mod address;
pub mod body;
mod body_copy;
pub mod body_fields;
pub mod bridge;
pub mod cache;
pub mod chain;
pub mod client_chain;
pub mod cloud;
pub mod consumer;
pub mod context;
pub mod counter;
pub mod credentials;
pub mod descriptor;
pub mod docs;
pub mod dubbo;
pub mod env;
pub mod facts;
pub mod flow;
mod form;
pub mod forwarded;
pub mod geography;
pub mod graphql;
pub mod hex;
mod index;
pub mod inheritance;
pub mod json;
pub mod kind;
pub mod login;
pub mod meta;
pub mod outbound;
pub mod owned;
pub mod pace;
pub mod personal;
pub mod random;
pub mod record;
pub mod resident;
pub mod resource;
pub mod roster;
pub mod runner_state;
pub mod script_counts;
pub mod scripts;
pub mod step;
pub mod system;
pub mod takeover;
pub mod traffic;
pub mod variable_fields;
pub mod variables;

pub use body::{BodyFilter, Frames, Pieces, Transform};
pub use bridge::{Bridge, Far};
pub use chain::{Chain, Entry};
pub use consumer::{Consumer, Consumers, Identity};
pub use context::{Client, Context, Slot};
pub use descriptor::{
    Auth, Build, Configuration, Descriptor, FileAccess, FileMember, Phase, PhaseSet, RunPolicy,
};
pub use env::{Env, Local, Node};
pub use flow::{Flow, FlowChain, FlowEnd, FlowFilter, FlowPlugin, FlowStep, Session};
pub use inheritance::Inheritable;
pub use kind::Kind;
pub use owned::{OwnedField, OwnedFields};
pub use resident::{Resident, Residents};
pub use resource::Resource;
pub use roster::Roster;
pub use scripts::Scripts;
pub use step::{BodySource, FilePart, Reply, ResponseStep, Step, StreamBody};
pub use takeover::Takeover;

/// An instance of a plugin: one configuration, parsed. Hooks run on a worker's thread and must not block it; slow
/// work returns [`Step::Wait`].
///
/// Only the hooks of phases that the [`Kind`] names are called.
pub trait Plugin: Send + Sync {
    /// Runs before authentication and limits.
    fn rewrite(&self, _cx: &mut Context, _env: &Env<'_>) -> Step {
        Step::Next
    }

    /// Decides whether the request is allowed.
    fn access(&self, _cx: &mut Context, _env: &Env<'_>) -> Step {
        Step::Next
    }

    /// Runs after a node is chosen; once for each attempt.
    fn before_proxy(&self, _cx: &mut Context, _env: &Env<'_>) -> Step {
        Step::Next
    }

    /// Runs before the request is sent; returns a filter to change or read its body.
    fn request_filter(&self, _cx: &mut Context, _env: &Env<'_>) -> Option<Box<dyn BodyFilter>> {
        None
    }

    /// Runs when the head of the response, [`Context::response`], is known and not sent yet. It also runs for
    /// responses of the gateway itself.
    fn header_filter(&self, _cx: &mut Context, _env: &Env<'_>) -> ResponseStep {
        ResponseStep::Next
    }

    /// Runs after all header filters; returns a filter to change or read this response's body.
    fn body_filter(&self, _cx: &mut Context, _env: &Env<'_>) -> Option<Box<dyn BodyFilter>> {
        None
    }

    /// Returns true if its log hook handles only some exchanges, which its first hook selects. It states its choice
    /// for each exchange: [`record::Record::sampled`], [`record::Record::not_sampled`].
    fn samples(&self) -> bool {
        false
    }

    /// Runs at the end of the exchange; [`Context::record`] is complete.
    fn log(&self, _cx: &mut Context, _env: &Env<'_>) {}

    /// Predicts its effect on a request that an operator tests without sending it; None if it cannot know. It must
    /// not count, consume or call anything. It makes all other changes.
    fn foresee(&self, _cx: &mut Context) -> Option<serde_json::Value> {
        None
    }
}
