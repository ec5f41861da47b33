//! The verdicts of directives for which no other part has one.

use super::super::report::Verdict;
use super::access::GUARDS;
use super::content::HANDLERS;
use super::converter::Converter;
use super::parse::Directive;

/// Directives with a counterpart.
const DONE: &[&str] = &[
    "absolute_redirect",
    "access_log",
    "add_header",
    "alias",
    "allow",
    "auth_basic",
    "auth_basic_user_file",
    "auth_request",
    "auth_request_set",
    "autoindex",
    "break",
    "charset",
    "client_body_timeout",
    "client_header_timeout",
    "client_max_body_size",
    "default_type",
    "deny",
    "error_log",
    "error_page",
    "events",
    "expires",
    "fastcgi_cache",
    "fastcgi_cache_bypass",
    "fastcgi_cache_key",
    "fastcgi_cache_lock",
    "fastcgi_cache_min_uses",
    "fastcgi_cache_path",
    "fastcgi_cache_use_stale",
    "fastcgi_cache_valid",
    "fastcgi_connect_timeout",
    "fastcgi_hide_header",
    "fastcgi_ignore_headers",
    "fastcgi_index",
    "fastcgi_intercept_errors",
    "fastcgi_keep_conn",
    "fastcgi_next_upstream",
    "fastcgi_next_upstream_timeout",
    "fastcgi_next_upstream_tries",
    "fastcgi_no_cache",
    "fastcgi_param",
    "fastcgi_pass",
    "fastcgi_pass_header",
    "fastcgi_read_timeout",
    "fastcgi_send_timeout",
    "fastcgi_split_path_info",
    "geo",
    "grpc_connect_timeout",
    "grpc_hide_header",
    "grpc_next_upstream",
    "grpc_pass",
    "grpc_read_timeout",
    "grpc_send_timeout",
    "grpc_set_header",
    "grpc_ssl_verify",
    "gzip",
    "gzip_comp_level",
    "gzip_http_version",
    "gzip_min_length",
    "gzip_static",
    "gzip_types",
    "gzip_vary",
    "hash",
    "http",
    "http2",
    "if",
    "if_modified_since",
    "index",
    "internal",
    "ip_hash",
    "keepalive",
    "keepalive_requests",
    "keepalive_timeout",
    "large_client_header_buffers",
    "least_conn",
    "limit_conn",
    "limit_conn_dry_run",
    "limit_conn_status",
    "limit_conn_zone",
    "limit_except",
    "limit_rate",
    "limit_rate_after",
    "limit_req",
    "limit_req_dry_run",
    "limit_req_status",
    "limit_req_zone",
    "listen",
    "location",
    "log_format",
    "map",
    "pid",
    "proxy_cache",
    "proxy_cache_background_update",
    "proxy_cache_bypass",
    "proxy_cache_key",
    "proxy_cache_lock",
    "proxy_cache_min_uses",
    "proxy_cache_path",
    "proxy_cache_revalidate",
    "proxy_cache_use_stale",
    "proxy_cache_valid",
    "proxy_connect_timeout",
    "proxy_cookie_domain",
    "proxy_cookie_flags",
    "proxy_cookie_path",
    "proxy_hide_header",
    "proxy_http_version",
    "proxy_ignore_headers",
    "proxy_intercept_errors",
    "proxy_method",
    "proxy_next_upstream",
    "proxy_next_upstream_timeout",
    "proxy_next_upstream_tries",
    "proxy_no_cache",
    "proxy_pass",
    "proxy_pass_header",
    "proxy_pass_request_body",
    "proxy_pass_request_headers",
    "proxy_read_timeout",
    "proxy_redirect",
    "proxy_responses",
    "proxy_send_timeout",
    "proxy_set_body",
    "proxy_set_header",
    "proxy_ssl_certificate",
    "proxy_ssl_certificate_key",
    "proxy_ssl_name",
    "proxy_ssl_protocols",
    "proxy_ssl_server_name",
    "proxy_ssl_trusted_certificate",
    "proxy_ssl_verify",
    "proxy_timeout",
    "random",
    "real_ip_header",
    "real_ip_recursive",
    "resolver",
    "return",
    "rewrite",
    "root",
    "satisfy",
    "send_timeout",
    "server",
    "server_name",
    "server_name_in_redirect",
    "set",
    "set_real_ip_from",
    "ssl",
    "ssl_certificate",
    "ssl_certificate_key",
    "ssl_ciphers",
    "ssl_client_certificate",
    "ssl_crl",
    "ssl_preread",
    "ssl_protocols",
    "split_clients",
    "ssl_stapling",
    "ssl_trusted_certificate",
    "ssl_verify_client",
    "ssl_verify_depth",
    "stream",
    "sub_filter",
    "sub_filter_once",
    "try_files",
    "types",
    "underscores_in_headers",
    "upstream",
    "user",
    "worker_connections",
    "worker_processes",
    "disable_symlinks",
    "port_in_redirect",
    "env",
    "gzip_proxied",
    "proxy_protocol",
    "proxy_ssl",
    "proxy_protocol_timeout",
    "preread_timeout",
    "sub_filter_last_modified",
    "sub_filter_types",
    "charset_types",
    "ignore_invalid_headers",
    "valid_referers",
];

/// Tuning without a counterpart.
const NO_EFFECT: &[&str] = &[
    "accept_mutex",
    "accept_mutex_delay",
    "aio",
    "client_body_buffer_size",
    "client_body_in_file_only",
    "client_body_in_single_buffer",
    "client_body_temp_path",
    "client_header_buffer_size",
    "chunked_transfer_encoding",
    "connection_pool_size",
    "daemon",
    "debug_connection",
    "directio",
    "etag",
    "fastcgi_buffer_size",
    "fastcgi_buffering",
    "fastcgi_buffers",
    "fastcgi_busy_buffers_size",
    "fastcgi_temp_file_write_size",
    "fastcgi_temp_path",
    "fastcgi_max_temp_file_size",
    "fastcgi_request_buffering",
    "fastcgi_socket_keepalive",
    "fastcgi_ignore_client_abort",
    "grpc_buffer_size",
    "grpc_socket_keepalive",
    "gzip_buffers",
    "gzip_disable",
    "http2_chunk_size",
    "http2_max_concurrent_streams",
    "http2_max_field_size",
    "http2_max_header_size",
    "http2_max_requests",
    "http2_recv_buffer_size",
    "http2_recv_timeout",
    "http2_push_preload",
    "keepalive_disable",
    "keepalive_time",
    "lingering_close",
    "lingering_time",
    "lingering_timeout",
    "limit_conn_log_level",
    "limit_req_log_level",
    "load_module",
    "lock_file",
    "log_not_found",
    "log_subrequest",
    "map_hash_bucket_size",
    "map_hash_max_size",
    "msie_padding",
    "msie_refresh",
    "multi_accept",
    "open_file_cache",
    "open_file_cache_errors",
    "open_file_cache_min_uses",
    "open_file_cache_valid",
    "open_log_file_cache",
    "output_buffers",
    "pcre_jit",
    "postpone_output",
    "proxy_buffer_size",
    "proxy_buffering",
    "proxy_buffers",
    "proxy_busy_buffers_size",
    "proxy_headers_hash_bucket_size",
    "proxy_headers_hash_max_size",
    "proxy_ignore_client_abort",
    "proxy_max_temp_file_size",
    "proxy_request_buffering",
    "proxy_socket_keepalive",
    "proxy_temp_file_write_size",
    "proxy_temp_path",
    "proxy_ssl_session_reuse",
    "proxy_ssl_ciphers",
    "proxy_ssl_verify_depth",
    "proxy_cache_methods",
    "proxy_cache_lock_timeout",
    "proxy_cache_lock_age",
    "proxy_cache_convert_head",
    "quic_retry",
    "quic_gso",
    "quic_active_connection_id_limit",
    "http3",
    "read_ahead",
    "request_pool_size",
    "reset_timedout_connection",
    "resolver_timeout",
    "rewrite_log",
    "scgi_temp_path",
    "send_lowat",
    "sendfile",
    "sendfile_max_chunk",
    "server_names_hash_bucket_size",
    "server_names_hash_max_size",
    "server_tokens",
    "ssl_buffer_size",
    "ssl_dhparam",
    "ssl_early_data",
    "ssl_ecdh_curve",
    "ssl_engine",
    "ssl_prefer_server_ciphers",
    "ssl_session_cache",
    "ssl_session_ticket_key",
    "ssl_session_tickets",
    "ssl_session_timeout",
    "ssl_stapling_verify",
    "ssl_conf_command",
    "subrequest_output_buffer_size",
    "tcp_nodelay",
    "tcp_nopush",
    "thread_pool",
    "timer_resolution",
    "types_hash_bucket_size",
    "types_hash_max_size",
    "use",
    "uwsgi_temp_path",
    "variables_hash_bucket_size",
    "variables_hash_max_size",
    "worker_aio_requests",
    "worker_cpu_affinity",
    "worker_priority",
    "worker_rlimit_core",
    "worker_rlimit_nofile",
    "worker_shutdown_timeout",
    "working_directory",
    "zone",
    "autoindex_exact_size",
    "autoindex_localtime",
    "fancyindex",
    "pagespeed",
    "ssl_password_file",
    "master_process",
    "override_charset",
    "min_delete_depth",
    "worker_rlimit_sigpending",
    "gunzip",
    "gunzip_buffers",
    "brotli_buffers",
    "brotli_window",
    "lua_package_path",
    "lua_package_cpath",
    "lua_code_cache",
    "lua_socket_log_errors",
    "lua_need_request_body",
    "lua_shared_dict",
    "lua_ssl_trusted_certificate",
    "lua_ssl_verify_depth",
    "hostnames",
    "proxy_upload_rate",
    "proxy_download_rate",
    "tcp_user_timeout",
];

/// Files of nginx's packages whose content Sigma has by itself.
pub(super) fn is_stock(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    matches!(
        name,
        "mime.types"
            | "fastcgi_params"
            | "fastcgi.conf"
            | "uwsgi_params"
            | "scgi_params"
            | "koi-utf"
            | "koi-win"
            | "win-utf"
            | "options-ssl-nginx.conf"
            | "ssl-dhparams.pem"
            | "proxy_params"
    ) || path.contains("modules-enabled/")
        || path.contains("/usr/share/nginx/modules/")
}

/// Returns true if a directive has a conversion, or its own remark.
pub(super) fn is_known(name: &str) -> bool {
    matches!(
        name,
        "include" | "mail" | "quic" | "http3" | "server" | "sticky" | "queue" | "split_clients" | "alias"
    ) || [DONE, NO_EFFECT, GUARDS, HANDLERS].iter().any(|names| names.contains(&name))
        || name.contains("_by_lua")
        || ["brotli", "more_", "mirror"].iter().any(|start| name.starts_with(start))
}

impl Converter<'_> {
    /// Adds the remark of each directive that no other part has one for.
    pub(super) fn remarks(&mut self, directives: &[Directive]) {
        for directive in directives {
            self.line(directive);
            let name = directive.name.as_str();
            // Entries of these blocks are no directives.
            if matches!(name, "map" | "geo" | "split_clients" | "types" | "charset_map") {
                for entry in directive.children() {
                    let source = entry.source();
                    self.report.add(entry.place, &source, Verdict::Done, "");
                }
            } else if name != "mail" {
                self.remarks(directive.children());
            }
        }
    }

    fn line(&mut self, directive: &Directive) {
        let name = directive.name.as_str();
        match name {
            "include" if directive.raw.is_some() || is_stock(directive.arg(0)) => {
                self.remark(directive, Verdict::Done, "");
            }
            "include" => {}
            "merge_slashes" if directive.arg(0) == "off" => {
                let text = "Doubled slashes count as one slash in the search for a route.";
                self.remark(directive, Verdict::Differs, text);
            }
            "recursive_error_pages" if directive.arg(0) == "on" => {
                self.remark(directive, Verdict::Differs, "An error page has no error page itself.");
            }
            "max_ranges" => {
                self.remark(directive, Verdict::Differs, "The gateway has its own limit of ranges.")
            }
            "merge_slashes" | "recursive_error_pages" => self.remark(directive, Verdict::NoEffect, ""),
            "mail" => self.remark(directive, Verdict::NotPossible, "mail is not available"),
            "quic" | "http3" => self.remark(directive, Verdict::NoEffect, ""),
            name if DONE.contains(&name) => self.remark(directive, Verdict::Done, ""),
            name if NO_EFFECT.contains(&name) => self.remark(directive, Verdict::NoEffect, ""),
            name if GUARDS.contains(&name) => {}
            name if name.contains("_by_lua") => {
                let text =
                    "Lua code is not converted: move it to a function of the plugin serverless-pre-function";
                self.remark(directive, Verdict::NotPossible, text);
            }
            name if name.starts_with("brotli") => {
                let text = "use the plugin brotli on the routes, or in a global rule";
                self.remark(directive, Verdict::NotPossible, text);
            }
            name if name.starts_with("more_") => {
                let text = "use `add_header` or the plugin response-rewrite";
                self.remark(directive, Verdict::NotPossible, text);
            }
            // Bodies are copied with their requests.
            "mirror_request_body" => {
                let (verdict, text) = match directive.arg(0) {
                    "off" => {
                        (Verdict::Differs, "The copy has the body: set `max_req_body_size` of proxy-mirror.")
                    }
                    _ => (Verdict::Done, ""),
                };
                self.remark(directive, verdict, text);
            }
            "mirror" => {}
            "server" | "sticky" | "queue" | "alias" => {}
            name if HANDLERS.contains(&name) => {}
            _ => self.remark(
                directive,
                Verdict::NotPossible,
                "this directive is unknown and was not converted",
            ),
        }
    }
}
