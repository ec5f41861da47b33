// A handler of http-wasm: it adds a field to each response. `docs/wasm-http.md` shows how to build it.
package main

import "unsafe"

//go:wasmimport http_handler set_header_value
func setHeader(kind uint32, name unsafe.Pointer, nameLength uint32, value unsafe.Pointer, valueLength uint32)

//go:wasmexport handle_request
func handleRequest() uint64 {
	name, value := "x-greeting", "hello"
	const response = 1
	setHeader(response, unsafe.Pointer(unsafe.StringData(name)), uint32(len(name)),
		unsafe.Pointer(unsafe.StringData(value)), uint32(len(value)))
	return 1
}

//go:wasmexport handle_response
func handleResponse(context, isError uint32) {}

func main() {}
