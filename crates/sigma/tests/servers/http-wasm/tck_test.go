// Runs the conformance kit of http-wasm against a server that has the kit's module in front of an echoing origin.
package main

import (
	"net/http"
	"os"
	"testing"

	"github.com/http-wasm/http-wasm-host-go/tck"
)

func TestKit(t *testing.T) {
	protocols := new(http.Protocols)
	if os.Getenv("TCK_HTTP2") == "" {
		protocols.SetHTTP1(true)
	} else {
		protocols.SetUnencryptedHTTP2(true)
	}
	client := &http.Client{Transport: &http.Transport{Protocols: protocols}}
	tck.Run(t, client, os.Getenv("TCK_URL"))
}
