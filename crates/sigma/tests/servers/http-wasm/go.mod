module http-wasm

go 1.24

require github.com/http-wasm/http-wasm-host-go v0.7.0
