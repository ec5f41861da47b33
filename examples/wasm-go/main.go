// A filter that adds a field to each response.
package main

import (
	"encoding/json"

	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm"
	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm/types"
)

func main() {}

func init() {
	proxywasm.SetPluginContext(func(uint32) types.PluginContext { return &plugin{} })
}

type plugin struct {
	types.DefaultPluginContext
	greeting string
}

func (p *plugin) OnPluginStart(int) types.OnPluginStartStatus {
	conf, err := proxywasm.GetPluginConfiguration()
	if err != nil {
		return types.OnPluginStartStatusFailed
	}
	var parsed struct{ Greeting string }
	if json.Unmarshal(conf, &parsed) != nil || parsed.Greeting == "" {
		proxywasm.LogCritical("greeting is missing")
		return types.OnPluginStartStatusFailed
	}
	p.greeting = parsed.Greeting
	return types.OnPluginStartStatusOK
}

func (p *plugin) NewHttpContext(uint32) types.HttpContext {
	return &exchange{greeting: p.greeting}
}

type exchange struct {
	types.DefaultHttpContext
	greeting string
}

func (e *exchange) OnHttpRequestHeaders(int, bool) types.Action {
	if name, _ := proxywasm.GetHttpRequestHeader("x-name"); name == "guest" {
		proxywasm.SendHttpResponse(403, nil, []byte("not for guests\n"), -1)
		return types.ActionPause
	}
	return types.ActionContinue
}

func (e *exchange) OnHttpResponseHeaders(int, bool) types.Action {
	proxywasm.ReplaceHttpResponseHeader("x-greeting", e.greeting)
	return types.ActionContinue
}
