// Loki in one process, as its own program starts it, and nothing else of that: no tracing, no profiling, no health probe.
package main

import (
	"flag"
	"fmt"
	"os"
	"time"

	// Before the collector's own encoding, which falls back to it.
	_ "google.golang.org/grpc/encoding/proto"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/grafana/loki/v3/pkg/loki"
	loki_runtime "github.com/grafana/loki/v3/pkg/runtime"
	"github.com/grafana/loki/v3/pkg/util/cfg"
	util_log "github.com/grafana/loki/v3/pkg/util/log"
	"github.com/grafana/loki/v3/pkg/validation"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	var config loki.ConfigWrapper
	if err := cfg.DynamicUnmarshal(&config, os.Args[1:], flag.CommandLine); err != nil {
		return err
	}
	config.LimitsConfig.SetGlobalOTLPConfig(config.Distributor.OTLPConfig)
	validation.SetDefaultLimitsForYAMLUnmarshalling(config.LimitsConfig)
	loki_runtime.SetDefaultLimitsForYAMLUnmarshalling(config.OperationalConfig)
	config.Server.Log = util_log.InitLogger(&config.Server, prometheus.DefaultRegisterer, false)
	if err := config.Validate(); err != nil {
		return err
	}
	server, err := loki.New(config.Config)
	if err != nil {
		return err
	}
	return server.Run(loki.RunOpts{StartTime: time.Now()})
}
