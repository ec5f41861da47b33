// Consul's agent, and nothing else of Consul: `consul agent` for tests.
package main

import (
	"os"

	"github.com/hashicorp/consul/command/agent"
	"github.com/hashicorp/consul/command/cli"
	mcli "github.com/mitchellh/cli"
)

func main() {
	ui := &cli.BasicUI{BasicUi: mcli.BasicUi{Writer: os.Stdout, ErrorWriter: os.Stderr}}
	// The first argument is the word `agent`.
	os.Exit(agent.New(ui).Run(os.Args[2:]))
}
