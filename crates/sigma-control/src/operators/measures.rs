//! Numbers that the control plane keeps, as lines of the counters' page.

use sigma_plugin::facts::Measure;

/// They in the text form of Prometheus.
pub(super) fn text(measures: &[Measure]) -> String {
    let mut text = String::new();
    for Measure { name, is_counter, series, .. } in measures {
        if !series.is_empty() {
            let kind = if *is_counter { "counter" } else { "gauge" };
            text.push_str(&format!("# TYPE sigma_{name} {kind}\n"));
        }
        for (labels, number) in series {
            let labels: Vec<String> =
                labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
            let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
            text.push_str(&format!("sigma_{name}{labels} {number}\n"));
        }
    }
    text
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_stays_within_its_label() {
        let series = vec![(vec![("path", "unix:/a\"b\\c\nd 1".to_owned())], 7)];
        let measure = Measure { name: "m", help: "", is_counter: false, series };
        let expected = "# TYPE sigma_m gauge\nsigma_m{path=\"unix:/a\\\"b\\\\c\\nd 1\"} 7\n";
        assert_eq!(text(&[measure]), expected);
        let empty = Measure { name: "m", help: "", is_counter: true, series: Vec::new() };
        assert_eq!(text(&[empty]), "");
    }
}
