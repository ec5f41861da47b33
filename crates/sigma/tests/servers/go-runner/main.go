// APISIX's Go runner with its example plugins.
package main

import (
	_ "github.com/apache/apisix-go-plugin-runner/cmd/go-runner/plugins"
	"github.com/apache/apisix-go-plugin-runner/pkg/runner"
)

func main() {
	runner.Run(runner.RunnerConfig{})
}
