//! Refuses requests with `x-deny`, panics at `x-panic`, names the client to the node, writes bodies in capitals, and greets
//! with its configuration.

use proxy_wasm::traits::{Context, HttpContext, RootContext};
use proxy_wasm::types::{Action, ContextType, LogLevel};

proxy_wasm::main! {{
    proxy_wasm::set_log_level(LogLevel::Info);
    proxy_wasm::set_root_context(|_| Box::<Root>::default());
}}

#[derive(Default)]
struct Root {
    greeting: String,
}

impl Context for Root {}

impl RootContext for Root {
    fn on_configure(&mut self, _: usize) -> bool {
        let text = self.get_plugin_configuration().and_then(|bytes| String::from_utf8(bytes).ok());
        self.greeting = text.unwrap_or_default();
        !self.greeting.is_empty()
    }

    fn create_http_context(&self, _: u32) -> Option<Box<dyn HttpContext>> {
        Some(Box::new(Filter { greeting: self.greeting.clone() }))
    }

    fn get_type(&self) -> Option<ContextType> {
        Some(ContextType::HttpContext)
    }
}

struct Filter {
    greeting: String,
}

impl Context for Filter {}

impl HttpContext for Filter {
    fn on_http_request_headers(&mut self, _: usize, _: bool) -> Action {
        if self.get_http_request_header("x-deny").is_some() {
            self.send_http_response(403, vec![("x-by", "rust")], Some(b"denied\n"));
            return Action::Pause;
        }
        assert!(self.get_http_request_header("x-panic").is_none(), "the request asks for a panic");
        let address = self.get_property(vec!["source", "address"]).unwrap_or_default();
        self.set_http_request_header_bytes("x-client", Some(&address));
        Action::Continue
    }

    fn on_http_request_body(&mut self, size: usize, end: bool) -> Action {
        if !end {
            return Action::Pause;
        }
        if let Some(body) = self.get_http_request_body(0, size) {
            self.set_http_request_body(0, size, &body.to_ascii_uppercase());
        }
        Action::Continue
    }

    fn on_http_response_headers(&mut self, _: usize, _: bool) -> Action {
        self.set_http_response_header("x-greeting", Some(&self.greeting));
        Action::Continue
    }
}
