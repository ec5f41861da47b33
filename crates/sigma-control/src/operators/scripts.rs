//! Counters of Lua scripts, for metrics and the status page.

use serde_json::{Map, Value, json};
use sigma_plugin::facts::Measure;
use sigma_plugin::script_counts::{ScriptBoard, ScriptTotals};

/// A counter: its name, its help text, and how it is read.
type Count = (&'static str, &'static str, fn(&ScriptTotals) -> u64);

const COUNTS: [Count; 5] = [
    ("lua_runs_total", "Runs of Lua scripts, from wait to wait", |totals| totals.runs),
    ("lua_cpu_microseconds_total", "Processor time of Lua scripts", |totals| totals.cpu_us),
    ("lua_errors_total", "Runs of Lua scripts that ended with an error", |totals| totals.errors),
    ("lua_aborted_total", "Runs of Lua scripts that took too long", |totals| totals.aborted),
    ("lua_refused_total", "Runs of Lua scripts that did not begin, after aborted ones", |totals| {
        totals.refused
    }),
];

/// The metrics of scripts.
pub(super) fn measures(board: &ScriptBoard) -> Vec<Measure> {
    let totals = board.totals();
    let of_plugins = |read: fn(&ScriptTotals) -> u64| {
        totals.iter().map(|(plugin, totals)| (vec![("plugin", plugin.to_string())], read(totals))).collect()
    };
    let counts =
        COUNTS.map(|(name, help, read)| Measure { name, help, is_counter: true, series: of_plugins(read) });
    let of_workers = |name, help, values: Vec<u64>| Measure {
        name,
        help,
        is_counter: false,
        series: (0..)
            .zip(values)
            .map(|(state, value)| (vec![("state", format!("{state}"))], value))
            .collect(),
    };
    let memory = of_workers("lua_memory_bytes", "Memory of the Lua scripts of each worker", board.memory());
    let help = "Open sockets of the Lua scripts of each worker, those in pools included";
    let sockets = of_workers("lua_sockets_open", help, board.sockets());
    let resets = Measure {
        name: "lua_resets_total",
        help: "How often workers dropped the values of Lua scripts because they had no memory left",
        is_counter: true,
        series: if memory.series.is_empty() { Vec::new() } else { vec![(Vec::new(), board.resets())] },
    };
    counts.into_iter().chain([memory, sockets, resets]).collect()
}

/// The same for the status page.
pub(super) fn shown(board: &ScriptBoard) -> Value {
    let plugins: Map<String, Value> = board
        .totals()
        .into_iter()
        .map(|(plugin, totals)| {
            let ScriptTotals { runs, cpu_us, errors, aborted, refused } = totals;
            let shown = json!({
                "runs": runs, "cpu_us": cpu_us, "errors": errors, "aborted": aborted, "refused": refused,
            });
            (plugin.into(), shown)
        })
        .collect();
    json!({
        "plugins": plugins,
        "memory_bytes": board.memory(),
        "open_sockets": board.sockets(),
        "resets": board.resets(),
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::operators::measures::text;

    #[test]
    fn scripts_are_shown_by_plugin() {
        let board = Arc::<ScriptBoard>::default();
        assert_eq!(text(&measures(&board)), "");
        let seat = board.enter();
        seat.counts("x").ran(Duration::from_millis(3), true);
        seat.counts("x").refused();
        seat.sockets().set(2);
        let text = text(&measures(&board));
        for line in [
            "sigma_lua_runs_total{plugin=\"x\"} 1\n",
            "sigma_lua_cpu_microseconds_total{plugin=\"x\"} 3000\n",
            "sigma_lua_aborted_total{plugin=\"x\"} 1\n",
            "sigma_lua_refused_total{plugin=\"x\"} 1\n",
            "sigma_lua_memory_bytes{state=\"0\"} 0\n",
            "sigma_lua_sockets_open{state=\"0\"} 2\n",
            "sigma_lua_resets_total 0\n",
        ] {
            assert!(text.contains(line), "{text}");
        }
        let expected = json!({"runs": 1, "cpu_us": 3000, "errors": 0, "aborted": 1, "refused": 1});
        assert_eq!(shown(&board)["plugins"]["x"], expected);
        assert_eq!(shown(&board)["open_sockets"], json!([2]));
    }
}
