//! The state of scripts in one exchange, over its phases.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;
use std::sync::Arc;

use mlua::{Lua, Table};
use sigma_http::{HeaderId, Headers, Method};
use sigma_plugin::system::Host;
use sigma_plugin::{Consumers, Context, Env, Local, Node, Plugin, Slot};

use super::Engine;
use super::lifetime::Lifetime;

/// The owner of the values that all scripts of an exchange share.
struct Scripts(#[expect(dead_code, reason = "a type with a size has an address of its own")] u8);

impl Plugin for Scripts {}

static SCRIPTS: Scripts = Scripts(0);

/// Less output waits for more, unless a script flushes it: `postpone_output` of nginx.
const POSTPONED_BYTES: usize = 1460;

/// The state of one exchange for its scripts.
pub(crate) struct Exchange {
    /// `ctx`, the second argument of functions: scripts keep values in it.
    pub(crate) api_ctx: Table,
    /// `ngx.ctx`, once a script has used it.
    ngx_ctx: RefCell<Option<Table>>,
    /// The status that a script set before the response.
    pub(crate) status: Cell<Option<u16>>,
    /// Response fields that scripts set before the response.
    pub(crate) fields: RefCell<Headers>,
    /// The path that a script set, decoded; None for the client's.
    pub(crate) uri: RefCell<Option<Vec<u8>>>,
    /// The request body between `ngx.req.init_body` and `finish_body`.
    pub(crate) draft: RefCell<Option<Vec<u8>>>,
    /// Variables that scripts set and that change nothing else, by name; None if unset.
    pub(crate) variables: RefCell<HashMap<String, Option<Vec<u8>>>>,
    /// The number of variables that scripts gave to templates.
    pub(crate) texts: Cell<usize>,
    /// The body that scripts have written; None if they have written nothing.
    pub(crate) output: RefCell<Option<Vec<u8>>>,
    /// The client gets the output so far with the next wait: `ngx.flush`.
    pub(crate) is_flush_due: Cell<bool>,
    /// `ngx.eof` was called: no output follows.
    pub(crate) is_output_complete: Cell<bool>,
    /// The status of `ngx.exit` in a header filter.
    pub(crate) exit_in_filter: Cell<Option<i64>>,
    /// The names of response fields that scripts set in header filters: they stay in the response of `ngx.exit`.
    pub(crate) set_in_filter: RefCell<BTreeSet<Vec<u8>>>,
    /// A script has removed the length of the response: it may change the body.
    pub(crate) drops_length: Cell<bool>,
    /// The request body was read.
    pub(crate) is_body_read: Cell<bool>,
    /// `ngx.arg` in a body filter.
    pub(crate) piece: RefCell<Piece>,
    /// Sockets of its scripts close with it.
    pub(crate) lifetime: Rc<Lifetime>,
}

/// One piece of a response body, as a body filter sees it.
#[derive(Default)]
pub(crate) struct Piece {
    pub(crate) bytes: Vec<u8>,
    pub(crate) is_last: bool,
}

impl Exchange {
    /// The state of an exchange; the first script makes it.
    pub(crate) fn of(ctx: &mut Context, engine: &Engine) -> mlua::Result<Rc<Exchange>> {
        let slot = Slot::from(&SCRIPTS);
        if let Some(known) = ctx.kept::<_, Rc<Exchange>>(slot) {
            return Ok(Rc::clone(known));
        }
        let exchange = Rc::new(Exchange {
            api_ctx: engine.new_api_ctx()?,
            ngx_ctx: RefCell::default(),
            status: Cell::new(None),
            fields: RefCell::default(),
            uri: RefCell::default(),
            draft: RefCell::default(),
            variables: RefCell::default(),
            texts: Cell::default(),
            output: RefCell::default(),
            is_flush_due: Cell::new(false),
            is_output_complete: Cell::new(false),
            exit_in_filter: Cell::new(None),
            set_in_filter: RefCell::default(),
            drops_length: Cell::new(false),
            is_body_read: Cell::new(false),
            piece: RefCell::default(),
            lifetime: Rc::default(),
        });
        engine.memory.add(&exchange);
        ctx.keep(slot, Rc::clone(&exchange));
        Ok(exchange)
    }

    /// Moves the response fields that were set before the response into it. The node's media type counts.
    pub(crate) fn move_fields(&self, headers: &mut Headers) {
        let fields = std::mem::take(&mut *self.fields.borrow_mut());
        for (id, name, value) in fields.fields() {
            if id != HeaderId::ContentType || !headers.has(id) {
                headers.append_parts(name, &[value]);
            }
        }
    }

    /// `ngx.ctx`; the first call makes it.
    pub(crate) fn ngx_ctx(&self, lua: &Lua) -> mlua::Result<Table> {
        if let Some(known) = self.known_ngx_ctx() {
            return Ok(known);
        }
        let made = lua.create_table()?;
        made.raw_set("api_ctx", &self.api_ctx)?;
        self.ngx_ctx.replace(Some(made.clone()));
        Ok(made)
    }

    /// `ngx.ctx`, if a script has used it.
    pub(crate) fn known_ngx_ctx(&self) -> Option<Table> {
        self.ngx_ctx.borrow().clone()
    }

    /// Replaces `ngx.ctx`.
    pub(crate) fn set_ngx_ctx(&self, table: Table) {
        self.ngx_ctx.replace(Some(table));
    }

    /// Empties `ctx` and `ngx.ctx`. Variables are made again at their next use, so no table of a script is kept.
    pub(super) fn empty(&self) -> mlua::Result<()> {
        self.ngx_ctx.take();
        self.api_ctx.clear()
    }

    /// Whether the client can get the output while the script continues.
    pub(crate) fn may_stream(&self, ctx: &Context) -> bool {
        let has_body = !matches!(self.status.get(), Some(204 | 304));
        has_body && ctx.request.client_method() != Method::Head
    }

    /// Whether the client gets the head and the output so far, although the script continues.
    pub(crate) fn is_output_due(&self) -> bool {
        let Some(bytes) = self.output.borrow().as_ref().map(Vec::len) else { return false };
        self.is_flush_due.get() || bytes >= POSTPONED_BYTES
    }

    /// Takes the output that the client gets now; None if it waits for more.
    pub(crate) fn take_due(&self, is_last: bool) -> Option<Vec<u8>> {
        if !is_last && !self.is_output_due() {
            return None;
        }
        self.is_flush_due.set(false);
        let mut output = self.output.borrow_mut();
        output.as_mut().map(std::mem::take).filter(|bytes| !bytes.is_empty())
    }

    /// Whether scripts have begun the response: its head cannot change then.
    pub(crate) fn is_head_sent(&self) -> bool {
        self.output.borrow().is_some()
    }

    /// The state of an exchange, if a script has run in it.
    pub(crate) fn known(ctx: &mut Context) -> Option<Rc<Exchange>> {
        ctx.kept::<_, Rc<Exchange>>(Slot::from(&SCRIPTS)).map(|exchange| Rc::clone(exchange))
    }
}

/// The environment of a hook, for filters of bodies, which run later.
pub(crate) struct Surroundings {
    node: Arc<Node>,
    local: Rc<Local>,
    consumers: Consumers,
}

impl Surroundings {
    pub(crate) fn of(env: &Env<'_>) -> Surroundings {
        Surroundings {
            node: Arc::clone(env.node),
            local: Rc::clone(env.local),
            consumers: Consumers::default(),
        }
    }

    /// Runs something in an environment without outbound calls.
    pub(crate) fn with<R>(&self, run: impl FnOnce(&Env<'_>) -> R) -> R {
        let env = Env::new(&self.node, &self.local, &self.consumers);
        run(&Env { machine: &Host, ..env })
    }
}
