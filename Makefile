# The commands of the repository. Everything they run is cargo or `cargo xtask`.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := run
.PHONY: run test bench fuzz docs tools

# Builds the gateway and starts it on the smallest configuration, with an origin to answer it.
run:
	cargo build --release --locked -p sigma
	target/release/sigma run -c examples/first.yaml --with-demo-origin 127.0.0.1:9000

# What has to pass before a change goes in. `cargo test` includes the house checks of xtask.
test: tools
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	cargo test --workspace --locked

# Measures beside other gateways in one run and fills the table in README.md.
bench:
	cargo xtask bench

# Every fuzz target for a bounded time.
fuzz:
	cargo xtask fuzz

# The documents made from code (docs/configuration.md), then the crates' own documentation.
docs:
	cargo xtask docs
	cargo doc --workspace --no-deps --locked

# The feature tests drive the gateway with curl and ab as well; mimalloc needs a C compiler.
tools:
	@command -v cargo >/dev/null || { echo 'cargo is missing: install Rust 1.90 or newer with rustup' >&2; exit 1; }
	@missing=(); \
	command -v cc >/dev/null || missing+=(gcc libc6-dev); \
	command -v curl >/dev/null || missing+=(curl); \
	command -v ab >/dev/null || missing+=(apache2-utils); \
	if (( $${#missing[@]} )); then \
	  sudo=$$( (( $$(id -u) == 0 )) || echo sudo ); \
	  $$sudo apt-get update -qq; \
	  $$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$${missing[@]}"; \
	fi
